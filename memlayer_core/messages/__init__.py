"""What was said: add, synchronize, edit, fork, sessions."""

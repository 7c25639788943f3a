"""What stands for turns that left the window."""

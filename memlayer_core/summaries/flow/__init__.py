"""The order of things in this room."""

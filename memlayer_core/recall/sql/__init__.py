"""Statements and rows of this room. Each function runs in its caller's transaction."""

"""Decisions of this room: pure and total."""

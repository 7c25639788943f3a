"""Readers of what other programs write: each is a pure function from JSON values or rows to conversations."""

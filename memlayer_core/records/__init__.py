"""Frozen nouns: what memlayer keeps and what it answers with."""

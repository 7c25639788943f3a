"""Decisions: pure and total. The clock, ids and counts are arguments."""

"""The vector index: embed texts, add them, find the nearest, and keep it in agreement with the journal."""

"""The only code that touches disks: the journal in SQL, the index in Chroma."""

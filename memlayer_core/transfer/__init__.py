"""Export, import, and the state of a session."""

"""The decisions of this room, without a database and without a model."""

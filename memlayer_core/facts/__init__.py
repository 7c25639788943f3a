"""What is known of a user: facts, preferences, episodes."""

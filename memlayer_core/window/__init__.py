"""What of a conversation a model is shown: policies, fitting, and the context."""

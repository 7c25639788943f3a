"""What else is relevant to the question: candidates, ranks, and what is recalled."""

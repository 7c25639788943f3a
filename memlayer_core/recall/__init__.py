"""What else bears on the question: candidates, ranks, and what is recalled."""

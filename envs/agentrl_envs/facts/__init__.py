"""A made-up country at a time: facts, the articles that state them, and questions about them."""

"""Networks and what travels with their weights; they know shapes, not algorithms."""

"""What steps environments for learning."""

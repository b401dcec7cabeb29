"""Environments: making them, describing and converting their spaces, saving and restoring their state."""

"""Environments: made, described, translated at their boundary, saved and brought back."""

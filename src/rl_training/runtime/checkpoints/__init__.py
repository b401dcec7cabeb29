"""Checkpoints and what continues from them."""

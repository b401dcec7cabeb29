"""Checkpoints, and runs that continue from them."""

"""Memories of what happened; they know steps, not algorithms."""

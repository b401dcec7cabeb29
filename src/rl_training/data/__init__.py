"""Rollouts, replay buffers and datasets; they depend on steps, not on algorithms."""

"""Describes a run, never executes one."""

"""Whole runs as jobs, and where they are done: in processes of this machine, or on a Ray cluster."""

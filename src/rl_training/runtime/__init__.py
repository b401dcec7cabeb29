"""Executes runs."""

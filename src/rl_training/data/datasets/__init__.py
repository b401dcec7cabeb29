"""Offline datasets: their form, their readers and their checks."""

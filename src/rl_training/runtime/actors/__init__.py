"""Actors: they step environments to collect experience."""

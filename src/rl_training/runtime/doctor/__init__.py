"""Checks of the installation, and of an environment against Gymnasium's interface."""

"""Models of Stable-Baselines3: read without running anything in them, and turned into runs of this package."""

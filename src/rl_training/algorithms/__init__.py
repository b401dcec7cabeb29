"""One file per algorithm: its config, its pure losses, its update, its SPEC."""

"""What is installed, and whether an environment keeps Gymnasium's contract."""

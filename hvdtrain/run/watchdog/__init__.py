"""Explains a training that does not go on: which rank waits for what, and which one does something else."""

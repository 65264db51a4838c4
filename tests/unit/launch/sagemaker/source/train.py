"""Stands for a user's own script; it is packed, and never run."""

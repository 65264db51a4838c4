"""Measurements of this project against others; see README.md. Not part of what is installed."""

"""Shuffled reading of Parquet files beside reading them in order, and beside an earlier version: see the README."""

"""One file for each kind of launcher: which variables it sets, and what they mean."""

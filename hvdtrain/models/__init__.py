"""Models by name, in both frameworks, and weights from one framework to the other."""

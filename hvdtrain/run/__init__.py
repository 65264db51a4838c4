"""One run, from options to its result."""

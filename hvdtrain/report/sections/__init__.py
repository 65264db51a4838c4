"""The sections of a page, each a function of what was read."""

"""Records that are the items of a Python object: a Dataset, a table, arrays."""

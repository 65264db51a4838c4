"""How much two workers lose against two that have nothing to do with each other, and against what their link allows."""

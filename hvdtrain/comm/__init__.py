"""Collectives on numpy arrays and JSON, the same for one process and for many.

Tensors of a training step do not pass here (the adapters reduce those on their device); this is for
everything that the loop itself must agree on: metrics, decisions, checkpoint contents, hashes.
"""

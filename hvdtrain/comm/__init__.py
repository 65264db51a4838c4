"""Collectives on arrays and JSON: what the loop must agree on. Gradients are reduced by the adapters."""

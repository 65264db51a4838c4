"""Training tunes the buckets of its gradients: what is chosen, measured, and remembered."""

"""What `--virtual-workers` costs."""

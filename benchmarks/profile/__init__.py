"""What bounds a training step."""

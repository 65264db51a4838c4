"""What the loop around a training step costs."""

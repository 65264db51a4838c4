"""From a command to the end of its first training step."""

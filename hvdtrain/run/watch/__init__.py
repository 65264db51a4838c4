"""What each rank does now, written for others; and why a training does not go on: which rank waits for what."""

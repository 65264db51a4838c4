"""Watch over a job's workers, here or on other hosts, and start them again after a failure."""

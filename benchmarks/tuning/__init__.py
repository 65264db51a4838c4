"""What a run's choice of buckets is worth, beside Horovod's own autotuning."""

"""What a run's choice of buckets and threads is worth, beside Horovod's own autotuning."""

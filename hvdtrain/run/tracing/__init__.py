"""Records some updates in detail: what each rank did, and Horovod between them, on one clock and in one file."""

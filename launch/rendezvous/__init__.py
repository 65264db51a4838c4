"""Where ranks find each other without MPI: a small server that speaks Horovod's key-value protocol."""

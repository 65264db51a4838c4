"""From the loss of a worker to the next update, beside torchrun and Horovod's own elastic mode."""

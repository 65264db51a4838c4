"""Training steps: hvdtrain's own beside what one writes by hand with Horovod and with DDP."""

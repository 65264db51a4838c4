"""SageMaker simulated on this machine: the same folders, files, FIFOs and container code."""

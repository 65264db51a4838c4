"""PyTorch behind `Adapter`."""

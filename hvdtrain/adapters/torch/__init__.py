"""PyTorch behind the `Adapter` protocol."""

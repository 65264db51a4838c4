"""Checkpoints: safetensors files and a manifest, written whole or not at all, readable at any world size."""

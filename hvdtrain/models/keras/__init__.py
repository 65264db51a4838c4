"""Models in Keras 3."""

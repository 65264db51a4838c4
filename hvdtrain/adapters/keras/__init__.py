"""The TensorFlow/Keras 3 side: what touches TensorFlow's tensors and Keras' variables."""

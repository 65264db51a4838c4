"""Training and functions on several workers as calls from Python: what `hvdtrain.train` and `hvdtrain.run` share."""

"""Weights from and to other programs' files, and whole models for other programs to run.

`files.read_weights` reads them, `start.initial_state` starts a training from them, `export.export` writes them. Nothing
read here is ever unpickled but by torch.load(weights_only=True), and no code or config in a file is run.
"""

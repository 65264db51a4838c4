"""Handwritten digits: scikit-learn's bundled copy of the UCI optical-recognition test set, 1,797 images of 8×8 pixels.

Small, real, and always at hand: the task that `hvdtrain` trains when nothing else is asked for.
"""

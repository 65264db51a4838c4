"""Models by name, in both frameworks, and weights from one framework to the other.

Here is what is known of picture models by their names alone, before one is built.
"""

SMALL_CNN = "cnn"
"""hvdtrain's own small network, in both frameworks."""

SMALL_SIDE = 64
"""ResNets for pictures up to this side get a stem that keeps their size: a 3×3 convolution, no pooling. He et al. 2015
(arXiv:1512.03385, section 4.2) begin so for CIFAR-10; the usual stem would leave 8×8 of 32×32."""

_WITHOUT_BATCH_NORM = ("alexnet", "convnext", "squeezenet", "swin", "vit", SMALL_CNN)


def uses_batch_norm(name: str) -> bool:
    """Whether a model of torchvision, Keras applications or ours has BatchNorm layers; True where that is not known."""
    name = name.lower()
    if name.startswith("vgg"):
        return name.endswith("_bn")
    return not name.startswith(_WITHOUT_BATCH_NORM)

"""Models by name, in both frameworks, and weights from one framework to the other.

Here is what is known of picture models by their names alone, before one is built.
"""

from hvdtrain.errors import UsageError

SMALL_CNN = "cnn"
"""hvdtrain's own small network, in both frameworks."""

SMALL_SIDE = 64
"""ResNets for pictures up to this side get a stem that keeps their size: a 3×3 convolution, no pooling. He et al. 2015
(arXiv:1512.03385, section 4.2) begin so for CIFAR-10; the usual stem would leave 8×8 of 32×32."""

_SMALL_CNN_SIDE = 2
"""Its pooling would leave nothing of smaller pictures."""

_WITHOUT_BATCH_NORM = ("alexnet", "convnext", "squeezenet", "swin", "vit", SMALL_CNN)


def uses_batch_norm(name: str) -> bool:
    """Whether a model of torchvision, Keras applications or ours has BatchNorm layers; True where that is not known."""
    name = name.lower()
    if name.startswith("vgg"):
        return name.endswith("_bn")
    return not name.startswith(_WITHOUT_BATCH_NORM)


def require_side_of_small_cnn(side: int) -> None:
    """Raises `UsageError`: nothing of pictures of this size would pass the small network's pooling."""
    if side < _SMALL_CNN_SIDE:
        raise refused_side(SMALL_CNN, side, f"its pooling needs {_SMALL_CNN_SIDE}×{_SMALL_CNN_SIDE} at least")


def refused_side(name: str, side: int, why: str) -> UsageError:
    """The error for a model that takes no pictures of this size."""
    return UsageError(
        f"The model {name} takes no pictures of {side}×{side}: {why.splitlines()[0].rstrip('.')}.",
        "It was made for larger ones, or for certain sizes only.",
        "choose a ResNet (--model resnet18), which gets a stem for small pictures, or give the model a size that it "
        "was made for, where the task has an argument for it.",
    )

"""Which parameters are spared weight decay: those of normalization layers, and biases."""

from __future__ import annotations


def is_exempt(name: str, ndim: int, in_normalization: bool) -> bool:
    """Whether a parameter is neither decayed nor scaled by lars and lamb, unless `--decay-norm-and-bias` is given.

    What has one dimension or none is a bias or a scale (Goyal et al. 2017, arXiv:1706.02677, section 5.1, spare the
    scales; You et al. 2017 and 2019 both, in their code). A bias may have more, as in Keras' attention, and then its
    name says so. Embeddings are decayed.

    Args:
        name: the parameter's own, without its layer's: "weight", "bias".
        ndim: its dimensions.
        in_normalization: whether it belongs to a normalization layer.
    """
    return in_normalization or ndim <= 1 or name == "bias"

"""What an optimizer is asked to do, with each optimizer's usual value where a flag was left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, get_args

OptimizerName = Literal["sgd", "adam", "adamw", "lars", "lamb"]

MOMENTUM = 0.9
BETAS = (0.9, 0.999)  # Kingma and Ba 2014, arXiv:1412.6980
EPS = {"adam": 1e-8, "adamw": 1e-8, "lamb": 1e-6}  # torch's; You et al. 2019, arXiv:1904.00962
WEIGHT_DECAY = {"adamw": 0.01, "lamb": 0.01}  # torch's AdamW; You et al. 2019, for BERT
TRUST_COEFFICIENT = 0.001  # You et al. 2017, arXiv:1708.03888


@dataclass(frozen=True)
class Settings:
    """One optimizer, for one kind of parameter. Settings that the rule of `name` does not know change nothing.

    Attributes:
        name: which rule.
        momentum: share of the momentum buffer that stays, for sgd and lars.
        nesterov: look ahead by the momentum, for sgd.
        beta1: decay of the first moment, for adam, adamw and lamb.
        beta2: decay of the second moment.
        eps: added to the root of the second moment, after its correction, as in torch.
        weight_decay: added to the gradient (sgd, adam, lars) or to what is taken from the weights (adamw, lamb).
        trust_coefficient: of lars.
        adapts: whether lars and lamb scale the step by the norm of the weights.
    """

    name: OptimizerName
    momentum: float = MOMENTUM
    nesterov: bool = False
    beta1: float = BETAS[0]
    beta2: float = BETAS[1]
    eps: float = 1e-8
    weight_decay: float = 0.0
    trust_coefficient: float = TRUST_COEFFICIENT
    adapts: bool = True

    def for_exempt(self) -> Settings:
        """The same for normalization layers and biases: no decay, and no scaling by norms."""
        return replace(self, weight_decay=0.0, adapts=False)


def require_each_once(*tables: Iterable[str]) -> None:
    """Called at import by whoever chooses by an optimizer's name, so that no name can be forgotten there.

    Raises:
        ValueError: a name is in none of `tables`, in two of them, or belongs to no optimizer.
    """
    found, wanted = sorted(chain(*tables)), sorted(get_args(OptimizerName))
    if found != wanted:
        raise ValueError(f"these optimizers are provided for: {found}, and there are: {wanted}")

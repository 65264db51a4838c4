"""Rules by what a saved catalog has of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_sharding.draws.draw_rule import DrawRule
from data_sharding.draws.mixture import Mixture
from data_sharding.draws.repeated import Repeated
from data_sharding.draws.weighted import Weighted


def rule_from(fields: Mapping[str, Any], weights: NDArray[np.int64] | None) -> DrawRule:
    """The rule that has described itself so. Raises KeyError, TypeError or ValueError: none has."""
    name, rest = fields["rule"], {key: value for key, value in fields.items() if key != "rule"}
    if name == "mixture":
        return Mixture(tuple(rest["sizes"]), tuple(rest["counts"]), rest["seed"])
    if name == "repeated":
        return Repeated(**rest)
    if name == "weighted" and weights is not None:
        return Weighted(weights, **rest)
    raise ValueError(f"it draws records by the rule {name!r}, which this version does not know")

"""Ranks that measure agree on the names of measures; ranks of other stages measure nothing."""

from __future__ import annotations

import pytest

from hvdtrain.adapters.measure_names import names_checksum, require_same_names
from hvdtrain.errors import DivergenceError


def test_ranks_that_measure_nothing_agree_with_all() -> None:
    require_same_names([[], ["loss", "accuracy"], [], ["accuracy", "loss"]])
    require_same_names([[], []])
    with pytest.raises(DivergenceError, match="names 'a', 'loss' on rank 1, 5, and 'b', 'loss' on rank 3"):
        require_same_names([[], ["loss", "a"], [], ["loss", "b"], [], ["a", "loss"]])


def test_a_checksum_is_of_the_names_and_exact_in_float64() -> None:
    assert names_checksum(["ab", "c"]) != names_checksum(["a", "bc"])
    assert names_checksum(["a"]).is_integer()
    assert names_checksum(["a"]) < 2**53

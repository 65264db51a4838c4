"""What optimizers, schedulers and modules keep comes back from text as it was, of the same type."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import pytest

from hvdtrain.adapters.plain_values import from_text, to_text


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, None, True, "b"], (1, "c"): (3,), 4: 1 + 2j, "bytes": b"\0\xff"},
        {1, 2},
        frozenset({3}),
        deque([1, 2], maxlen=4),
        Counter({2: 1, 4: 2}),  # the milestones of torch's MultiStepLR
        [Counter("aab"), {"inner": Counter()}],
        OrderedDict([("b", 1), ("a", OrderedDict())]),
        [defaultdict(list, a=[1]), defaultdict(int), defaultdict(dict, {1: {}})],
        [np.float32(0.5), np.int64(7), np.bool_(True), np.complex64(1j), np.float64(0.1)],
    ],
)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    found = from_text(to_text(value, lambda _: None), lambda array: array)
    assert found == value
    assert repr(found) == repr(value)


def test_a_defaultdict_of_another_factory_comes_back_as_a_dict() -> None:
    assert type(from_text(to_text(defaultdict(lambda: 3, a=1), lambda _: None), lambda array: array)) is dict

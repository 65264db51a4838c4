"""Buckets of gradients that ranks must not add up have different names."""

from __future__ import annotations

import tensorflow as tf

from hvdtrain.adapters.keras.comm_hooks import PlainReduction
from hvdtrain.adapters.keras.gradients import Gradient, _buckets


def test_gradients_of_other_variables_have_another_name() -> None:
    names = [
        bucket.name
        for place, length in ((0, 2), (1, 2), (0, 3))
        for bucket in _buckets([Gradient(place, tf.zeros([length]), (length,))], PlainReduction(None), 100)
    ]
    assert len({*names}) == 3

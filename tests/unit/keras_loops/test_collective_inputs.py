"""What is no tensor, and a tensor without rows where some are needed: a sentence, where Horovod ends the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import hvdtrain.tensorflow as hvd
from hvdtrain.errors import UsageError

SCALAR = tf.constant(2.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: hvd.alltoall(SCALAR), "hvd.alltoall was given a tensor without dimensions"),
        (lambda: hvd.alltoall(tensor=2.0), "hvd.alltoall was given a tensor without dimensions"),
        (lambda: hvd.allgather(tf.Variable(2.0)), "hvd.allgather was given a tensor without dimensions"),
        (
            lambda: hvd.grouped_reducescatter(tensors=[tf.ones(2), SCALAR]),
            "hvd.grouped_reducescatter was given a tensor",
        ),
        (lambda: hvd.allreduce(None), "hvd.allreduce was given a value of the type NoneType"),
        (lambda: hvd.broadcast(None, 0), "hvd.broadcast was given a value of the type NoneType"),
    ],
)
def test_what_horovod_cannot_send_has_a_sentence(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        call()
    assert isinstance(caught.value, ValueError)

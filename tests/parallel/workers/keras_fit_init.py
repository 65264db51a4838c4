"""What goes wrong before training: `keras_fit_init.py CASE` prints the refusal of one rank."""

from __future__ import annotations

import sys

import keras

import hvdtrain.keras as hvd
from hvdtrain.errors import UsageError


def use_before_init() -> None:
    hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))


def callback_before_init() -> None:
    hvd.callbacks.BroadcastGlobalVariablesCallback(0)


CASES = {
    "init": hvd.init,
    "use_before_init": use_before_init,
    "callback_before_init": callback_before_init,
}

if __name__ == "__main__":
    try:
        CASES[sys.argv[1]]()
    except UsageError as error:
        print(f"REFUSED {error}")
    else:
        print("ACCEPTED")

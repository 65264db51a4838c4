"""hvdtrain.keras and hvdtrain.tensorflow have the names of Horovod's packages, with their arguments."""

from __future__ import annotations

import inspect
from types import ModuleType

import horovod.tensorflow
import horovod.tensorflow.elastic
import horovod.tensorflow.keras
import horovod.tensorflow.keras.callbacks
import horovod.tensorflow.keras.elastic
import pytest

import hvdtrain.keras
import hvdtrain.keras.callbacks
import hvdtrain.keras.elastic
import hvdtrain.tensorflow
import hvdtrain.tensorflow.elastic

PAIRS = [
    (horovod.tensorflow.keras, hvdtrain.keras),
    (horovod.tensorflow.keras.callbacks, hvdtrain.keras.callbacks),
    (horovod.tensorflow.keras.elastic, hvdtrain.keras.elastic),
    (horovod.tensorflow, hvdtrain.tensorflow),
    (horovod.tensorflow.elastic, hvdtrain.tensorflow.elastic),
]


@pytest.mark.parametrize(("theirs", "ours"), PAIRS, ids=[theirs.__name__ for theirs, _ in PAIRS])
def test_arguments_are_horovods_and_in_the_same_places(theirs: ModuleType, ours: ModuleType) -> None:
    compared = 0
    for name in dir(theirs):
        wanted, found = getattr(theirs, name), getattr(ours, name, None)
        if name.startswith("_") or found is None or not callable(wanted) or wanted is found:
            continue
        if not getattr(wanted, "__module__", "").startswith("horovod"):
            continue
        given, taken = inspect.signature(wanted).parameters, inspect.signature(found).parameters
        if {inspect.Parameter.VAR_KEYWORD} & {each.kind for each in (*given.values(), *taken.values())}:
            continue
        assert not given.keys() - taken.keys(), name
        by_place = [each for each, parameter in taken.items() if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
        assert [each for each in by_place if each in given] == [*given][: len(by_place)], name
        compared += 1
    assert compared >= 2

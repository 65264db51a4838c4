"""The parts of the training records that options ask for."""

from __future__ import annotations

import numpy as np
import pytest

from data_sharding import Catalog
from hvdtrain.config.parser import parse_train_config
from hvdtrain.config.train_config import DataConfig
from hvdtrain.errors import UsageError
from hvdtrain.run.data_parts import divided


def catalog(labels: bool = True) -> Catalog:
    return Catalog.of(range(200), labels=np.arange(200) % 10 if labels else None)


def test_a_share_is_set_aside_of_each_label() -> None:
    train, validation = divided(catalog(), DataConfig(validation_split=0.1))
    assert validation is not None
    assert validation.labels is not None
    assert np.bincount(validation.labels).tolist() == [2] * 10
    assert len(train) == 180


def test_a_subset_comes_first() -> None:
    train, validation = divided(catalog(labels=False), DataConfig(subset=0.5, folds=4, fold=3))
    assert validation is not None
    assert (len(train), len(validation)) == (75, 25)
    assert divided(catalog(), DataConfig(subset=1.0))[1] is None


@pytest.mark.parametrize("seed", [0, 1])
def test_parts_are_the_same_each_time(seed: int) -> None:
    np.random.seed(seed)  # noqa: NPY002
    first, second = (divided(catalog(), DataConfig(validation_split=0.3))[0] for _ in range(2))
    assert first.fingerprint == second.fingerprint


def test_something_is_left_to_train_on() -> None:
    with pytest.raises(UsageError, match=r"is 1\.0\. It must be more than 0 and less than 1"):
        parse_train_config(["--data.validation-split", "1"])
    for option, given in (("subset", 0.0001), ("validation_split", 0.9999)):
        named = f"--data.{option.replace('_', '-')} {given} of 200 records"
        with pytest.raises(UsageError, match=named) as caught:
            divided(catalog(labels=False), DataConfig(**{option: given}))
        assert "HINT: " in str(caught.value)


def test_records_that_are_drawn_by_a_rule_are_not_divided() -> None:
    mixed = catalog().repeat(2)
    assert divided(mixed, DataConfig(subset=1.0))[0] is mixed
    with pytest.raises(UsageError, match="--data.validation-split was given, and the task draws"):
        divided(mixed, DataConfig(validation_split=0.1))

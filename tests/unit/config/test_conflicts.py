"""The table of options that exclude or need each other: every row is about options that there are, and is refused."""

from __future__ import annotations

from typing import Any

import pytest

from hvdtrain.algorithms.update_rules import OPTIMIZERS
from hvdtrain.config.conflicts import ROWS, Condition, Row, refuse_conflicts
from hvdtrain.config.option import default_values
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import UsageError

USUAL = default_values(TrainConfig)
EXCLUDING = [row for row in ROWS if row.excludes]
NEEDING = [row for row in ROWS if not row.excludes]


def name_of(row: Row) -> str:
    return f"{row.option}, {row.other}"


def meeting(condition: Condition) -> dict[str, Any]:
    """A value that meets the condition."""
    return {condition.name: condition.values[0] if condition.sign == "=" else "anything else"}


def refusal(values: dict[str, Any]) -> UsageError:
    with pytest.raises(UsageError) as caught:
        refuse_conflicts(values, USUAL)
    return caught.value


def require_names(error: UsageError, *conditions: Condition) -> None:
    for name in (condition.name for condition in conditions):
        assert ("--parallel " if name == "parallel.choose" else "--" + name.replace("_", "-")) in error.fact


@pytest.mark.parametrize("row", EXCLUDING, ids=name_of)
def test_each_conflict_is_refused_in_three_parts(row: Row) -> None:
    values = meeting(row.option) | meeting(row.other)
    assert values.keys() <= USUAL.keys()
    error = refusal(values)
    require_names(error, row.option, row.other)
    assert (error.conflict, error.hint) == (row.why, row.hint)
    refuse_conflicts(meeting(row.option), USUAL)
    refuse_conflicts(meeting(row.other), USUAL)


def unmet(condition: Condition) -> object:
    """A value with which it does not hold."""
    if condition.name == "optimizer":
        return next((name for name in OPTIMIZERS if name not in condition.values), None)
    return "something else" if condition.values else USUAL[condition.name]


@pytest.mark.parametrize("row", NEEDING, ids=name_of)
def test_each_need_is_refused_where_it_is_not_met(row: Row) -> None:
    values, met = meeting(row.option), meeting(row.other)
    assert (values | met).keys() <= USUAL.keys()
    error = refusal(values | dict.fromkeys(met, unmet(row.other)))
    require_names(error, row.option, row.other)
    assert error.conflict in (row.why, "It would change nothing.")
    assert error.hint == row.hint
    refuse_conflicts(values | met, USUAL)


def test_the_table_says_what_is_excluded_and_what_is_needed() -> None:
    assert len(EXCLUDING) > 40
    assert len(NEEDING) > 20
    assert len({name_of(row) for row in ROWS}) == len(ROWS)


def test_a_row_on_options_of_another_class_is_passed_over() -> None:
    refuse_conflicts({"lr_power": 2.0}, USUAL)

"""The tables of options that exclude or need each other: every row is about options that there are, and is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hvdtrain.config.conflicts import CONFLICTS, NEEDS, Conflict, Need, refuse_conflicts
from hvdtrain.config.option import default_values
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import UsageError

USUAL = default_values(TrainConfig)


def meeting(condition: str) -> dict[str, Any]:
    """A value that meets the condition."""
    name, sign, wanted = re.fullmatch(r"([\w.]+)(?:(!?=)(.+))?", condition).groups()  # type: ignore[union-attr]
    return {name: wanted.split("|")[0] if sign == "=" else "anything else"}


def refusal(values: dict[str, Any]) -> UsageError:
    with pytest.raises(UsageError) as caught:
        refuse_conflicts(values, USUAL)
    return caught.value


@pytest.mark.parametrize(
    ("row", "other"), [(row, other) for row in CONFLICTS for other in row.others.split()], ids=lambda part: str(part)
)
def test_each_conflict_is_refused_in_three_parts(row: Conflict, other: str) -> None:
    values = meeting(row.option) | meeting(other)
    assert values.keys() <= USUAL.keys()
    error = refusal(values)
    for name in values:
        flag = "--parallel " if name == "parallel.choose" else "--" + name.replace("_", "-")
        assert flag in error.fact
    assert (error.conflict, error.hint) == (row.why, row.hint)
    refuse_conflicts(meeting(row.option), USUAL)
    refuse_conflicts(meeting(other), USUAL)


@pytest.mark.parametrize("row", NEEDS, ids=lambda row: row.option)
def test_each_need_is_refused_where_it_is_not_met(row: Need) -> None:
    values, met = meeting(row.option), meeting(row.needed)
    assert (values | met).keys() <= USUAL.keys()
    lacking = {name: "something else" if "=" in row.needed else USUAL[name] for name in met}
    error = refusal(values | lacking)
    assert error.conflict in (row.why, "It would change nothing.")
    assert error.hint == row.hint or "it goes with --" in error.hint
    refuse_conflicts(values | met, USUAL)


def test_a_row_on_options_of_another_class_is_passed_over() -> None:
    refuse_conflicts({"lr_power": 2.0}, USUAL)

"""Sets of records by name: how they are written, and what is measured on them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.config_samples import parse

from hvdtrain.errors import UsageError
from hvdtrain.set_names import UNNAMED, chosen_sets, in_set, named_patterns, readable, set_of

names = st.from_regex(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,8}", fullmatch=True)
patterns = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
OPTION = "--data.validation"


@given(wanted=st.dictionaries(names, patterns, min_size=1, max_size=4))
def test_names_and_patterns_come_back(wanted: dict[str, str]) -> None:
    assert named_patterns([f"{name}={pattern}" for name, pattern in wanted.items()], "--set") == wanted


@given(wanted=st.dictionaries(names, st.none() | patterns, min_size=1, max_size=4))
def test_a_name_alone_is_a_set_of_the_training(wanted: dict[str, str | None]) -> None:
    texts = [name if pattern is None else f"{name}={pattern}" for name, pattern in wanted.items()]
    assert list(chosen_sets(texts, "--set").items()) == list(wanted.items())
    with pytest.raises(UsageError, match="twice"):
        chosen_sets([*texts, texts[0]], "--set")
    with pytest.raises(UsageError):
        chosen_sets([*texts, "*.rec"], "--set")


@given(wanted=st.dictionaries(names, patterns, min_size=1, max_size=4))
def test_an_option_that_is_given_several_times_keeps_every_value(wanted: dict[str, str]) -> None:
    """Whatever YAML would make of it."""
    values = [f"{name}={pattern}" for name, pattern in wanted.items()]
    assert parse("--epochs", "3", *(word for value in values for word in (OPTION, value))).data.validation == values
    assert parse(*(f"{OPTION}={value}" for value in values)).data.validation == values


@example(metric="/", sets=["0"])
@given(metric=st.text(max_size=12), sets=st.lists(names, min_size=1, max_size=3, unique=True))
def test_each_metric_belongs_to_one_set(metric: str, sets: list[str]) -> None:
    for name in sets:
        assert set_of(in_set(name, metric), sets) == (name, metric)
    assert in_set(*set_of(metric, [UNNAMED])) == metric


def test_the_only_pattern_needs_no_name() -> None:
    assert parse(OPTION, "[ab]*.rec").data.validation_patterns() == {UNNAMED: "[ab]*.rec"}
    assert parse(OPTION, '["a=1", "b=2"]').data.validation_patterns() == {"a": "1", "b": "2"}  # as SageMaker can
    assert parse(OPTION, "null").data.validation_patterns() is None


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["a=x", "a=y"], "The name a is given twice."),
        (["a=x", "y"], "It must be NAME=PATTERN."),
        (["a="], "It must be NAME=PATTERN."),
        ([""], "It must be NAME=PATTERN."),
        (["=x"], "names a set of records ''"),
        (["-a=x"], "names a set of records '-a'"),
        (["a/b=x"], "names a set of records 'a/b'"),
        (["a b=x"], "names a set of records 'a b'"),
        (["für=x"], "names a set of records 'für'"),
    ],
)
def test_what_is_refused(texts: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(*(f"{OPTION}={text}" for text in texts))


@pytest.mark.parametrize("words", [[OPTION], [OPTION, "--epochs", "3"]])
def test_a_pattern_that_is_missing_is_asked_for(words: list[str]) -> None:
    with pytest.raises(UsageError, match=OPTION):
        parse(*words)


@pytest.mark.parametrize(
    ("values", "chosen", "shown"),
    [
        (["loss", "accuracy"], "", "accuracy"),
        (["accuracy", "loss", "top5"], "top5", "top5"),
        (["loss"], "", "loss"),
        (["old/loss", "old/top5", "new/loss", "new/accuracy"], "new/loss", "new/accuracy"),
        (["old/loss", "old/top5", "new/loss", "new/accuracy"], "", "old/top5"),
    ],
)
def test_which_metric_is_shown_alone(values: list[str], chosen: str, shown: str) -> None:
    assert readable(values, chosen) == shown

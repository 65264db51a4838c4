"""Several sets of records by name, and what is measured on each of them: the loss of the set "test" is "test/loss".

A task that validates on one set need not name it: then its measures keep their own names.
"""

import re
from collections.abc import Collection, Iterable
from typing import Final

from hvdtrain.errors import UsageError

_NAME: Final = r"\w[\w.-]*"  # of a collective, too; what begins with "-" is an option

UNNAMED: Final = ""
"""The name of the only set, where it has none."""


def require_set_name(name: object, where: str) -> None:
    """Raise `UsageError` unless `name` can be a set's: `where` says who has given it."""
    if not isinstance(name, str) or not re.fullmatch(_NAME, name, re.ASCII):
        raise UsageError(
            f"{where} names a set of records {name!r}.",
            "The name becomes a part of metrics, as in NAME/loss.",
            "use letters from a to z, digits, '_', '.' and '-' only, and none of the last two at its beginning.",
        )


def named_patterns(texts: Iterable[str], option: str, may_be_unnamed: bool = False) -> dict[str, str]:
    """Name → pattern of each NAME=PATTERN that `option` was given.

    Args: `may_be_unnamed`: the only one may be a PATTERN alone; then its name is UNNAMED. A pattern that contains "="
    needs a name before it.

    Raises UsageError: it is written otherwise, or a name is given twice.
    """
    patterns: dict[str, str] = {}
    for text in (texts := list(texts)):
        name, equals, pattern = text.partition("=")
        if not equals and may_be_unnamed and len(texts) == 1:
            name, pattern = UNNAMED, text
        elif equals and pattern:
            require_set_name(name, f"{option} {text}")
        if not pattern or name in patterns:
            raise UsageError(
                f"{option} is given as {text!r}.",
                f"The name {name} is given twice." if name in patterns else "It must be NAME=PATTERN.",
                f"write for example {option} test='test-*.tfrecord', each name once.",
            )
        patterns[name] = pattern
    return patterns


def chosen_sets(texts: Iterable[str], option: str) -> dict[str, str | None]:
    """Name → pattern of each NAME=PATTERN that `option` was given; NAME alone is one of the training's sets: None.

    Raises UsageError: it is written otherwise, or a name is given twice.
    """
    texts = list(texts)
    alone = [text for text in texts if "=" not in text]
    for name in alone:
        require_set_name(name, f"{option} {name}")
    given: dict[str, str | None] = {**named_patterns([text for text in texts if "=" in text], option)}
    if twice := [name for number, name in enumerate(alone) if name in given or name in alone[:number]]:
        raise UsageError(
            f"{option} names {twice[0]} twice.", "Each result has one name.", "give it once, or another name."
        )
    return {name: given.get(name) for name in (text.partition("=")[0] for text in texts)}


def in_set(name: str, measure: str) -> str:
    """What a measure of the set `name` is called."""
    return f"{name}/{measure}" if name else measure


def set_of(metric: str, names: Collection[str]) -> tuple[str, str]:
    """To which of the sets `names` a metric belongs, and which measure it is: of the first set, where it names none."""
    name, slash, measure = metric.partition("/")
    is_named = name != UNNAMED and slash and name in names
    return (name, measure) if is_named else (next(iter(names), UNNAMED), metric)


def readable(values: Collection[str], chosen: str = "") -> str:
    """Which metric to show where there is room for one: `chosen`, or the first one; but people read a loss less easily
    than another measure of the same set. `values` must not be empty."""
    chosen = chosen if chosen in values else next((name for name in values if _is_loss(name)), next(iter(values)))
    of_set = chosen.removesuffix("loss")
    others = (name for name in values if name.startswith(of_set) and "/" not in name.removeprefix(of_set))
    return next((name for name in others if not _is_loss(name)), chosen) if _is_loss(chosen) else chosen


def _is_loss(metric: str) -> bool:
    return metric.rpartition("/")[2] == "loss"

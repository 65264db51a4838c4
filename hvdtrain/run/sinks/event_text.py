"""An event as a line of a log, for people: "run started: step 0, total steps 360, steps per epoch 30, epochs 12"."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from hvdtrain.engine.events import Event

_WORDS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


def text_of(event: Event) -> str:
    """In one line; epochs are counted from 1, as on the console."""
    what = _WORDS.sub(" ", type(event).__name__).lower()
    return f"{what}: {', '.join(_told(event))}"


def numbers_of(values: Mapping[str, float]) -> str:
    """As "loss 1.7, accuracy 0.634"."""
    return ", ".join(f"{name} {_shown(value)}" for name, value in values.items())


def _told(owner: Any) -> Iterator[str]:
    for field in fields(owner):
        value = getattr(owner, field.name)
        if value not in (None, ""):
            yield f"{field.name.replace('_', ' ')} {_shown(value + 1 if field.name == 'epoch' else value)}"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return f"({numbers_of(value)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    if isinstance(value, BaseException):
        return " ".join(f"{type(value).__name__}: {value}".split())
    return f"({', '.join(_told(value))})" if is_dataclass(value) else str(value)

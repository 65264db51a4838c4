"""What the values of options and of YAML files mean, by the type of their option.

Text is read as YAML would read it, so that an option and a key of a file mean the same.
"""

import typing
from types import NoneType, UnionType
from typing import Any, Final, Literal, get_args, get_origin

from hvdtrain.config.yaml_file import NUMBER, yaml_value
from hvdtrain.errors import UsageError

_WORDS: Final = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text (in quotes)",
    dict: "a mapping",
    list: "a list, e.g. [30, 60]",
    NoneType: "null",
}
_NULLS: Final = ("null", "Null", "NULL", "~")


def typed_value(flag: str, value: Any, hint: Any) -> Any:
    """The value as the type of its option says.

    Args:
        flag: the option, for errors.
        value: text, or what a YAML file holds.
        hint: the option's type.

    Raises:
        UsageError: it is not of that type.
    """
    kinds = get_args(hint) if get_origin(hint) in (UnionType, typing.Union) else (hint,)
    for kind in sorted(kinds, key=lambda kind: kind is not NoneType):  # "null" is text, too
        try:
            return _as(kind, value)
        except ValueError:
            pass
    words = " or ".join(", ".join(get_args(kind)) or _WORDS[kind] for kind in map(_plain, kinds))
    raise UsageError(
        f"{flag} is given as {str(value)!r}.", f"It must be {words}.", f"`hvdtrain train --help-all` explains {flag}."
    )


def scalar(text: str) -> Any:
    """The value of an argument of a task, whose type nobody knows: text, unless it looks like something else."""
    words = {"true": True, "false": False, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    if NUMBER.fullmatch(text):
        return float(text) if set(text) & set(".eE") else int(text)
    if text.startswith(("[", "{")):
        return yaml_value(text)
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else text


def _plain(kind: Any) -> Any:
    """list[float] → list; others, and Literal with its choices, as they are."""
    origin = get_origin(kind)
    return kind if origin in (None, Literal) else origin


def _as(kind: Any, value: Any) -> Any:
    """Raises ValueError where the value is not of that kind."""
    if get_origin(kind) is Literal:
        return _require(value, value in get_args(kind))
    if kind is NoneType:
        return None if value is None or value in _NULLS else _require(value, False)
    if kind is str:
        return _require(value, isinstance(value, str))
    if _plain(kind) is list:
        items = yaml_value(value if value.lstrip().startswith("[") else f"[{value}]") if _is_text(value) else value
        return [_as(get_args(kind)[0], item) for item in _require(items, isinstance(items, (list, tuple)))]
    if _is_text(value):
        value = yaml_value(value)
    if kind is float and type(value) is int:
        return float(value)
    return _require(value, type(value) is _plain(kind))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _require(value: Any, holds: bool) -> Any:
    if not holds:
        raise ValueError(value)
    return value

"""From `--model` and `--task-args` to a task: every refusal names the argument."""

import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.task.task import Task

_KINDS: Mapping[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}
_NAMES = {**_KINDS, type(None): "null"}


def task_arguments(kind: type[Task], model: str | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`--task-args` with `--model` among them.

    Raises:
        UsageError: the task offers no choice of models, or two are named.
    """
    if model is None:
        return dict(arguments)
    if "model" not in inspect.signature(kind).parameters:
        raise UsageError(
            f"The task {kind.__name__} has one model of its own.",
            f"--model {model} would do nothing.",
            "leave --model out, or choose a task that offers several.",
        )
    if arguments.get("model", model) != model:
        raise UsageError(
            f"--model {model} and --task-args.model {arguments['model']} are both given.",
            "They name the same thing, and differ.",
            "give one of them.",
        )
    return {**arguments, "model": model}


def build_task(kind: type[Task], arguments: Mapping[str, Any]) -> Task:
    """Construct a task from its arguments.

    Raises:
        UsageError: an unknown name, with the nearest match; a value of another type than the constructor's annotation,
            where that is a number, a truth value, text, or one of these or None; an argument missing.
    """
    parameters = inspect.signature(kind).parameters
    for name in arguments:
        if name not in parameters:
            raise UsageError(
                f"The task {kind.__name__} takes no argument {name!r}.",
                "It was given as --task-args.",
                did_you_mean(name, parameters) if parameters else "this task takes no arguments.",
            )
    try:
        inspect.signature(kind).bind(**arguments)
    except TypeError as error:
        raise UsageError(
            f"The task {kind.__name__} cannot be built: {error}.",
            "Every argument without a default must be given.",
            "pass it as --task-args.NAME VALUE.",
        ) from error
    _check_types(kind, arguments)
    return kind(**arguments)


def _check_types(kind: type[Task], arguments: Mapping[str, Any]) -> None:
    annotations = _annotations(kind)
    for name, value in arguments.items():
        wanted = _simple_types(annotations.get(name))
        accepted = (*wanted, int) if float in wanted else wanted
        if wanted and not (isinstance(value, accepted) and (bool in wanted or not isinstance(value, bool))):
            raise UsageError(
                f"The task's argument {name} is {value!r}.",
                f"It must be {' or '.join(_NAMES[kind_of_value] for kind_of_value in wanted)}.",
                f"give --task-args.{name.replace('_', '-')} such a value.",
            )


def _annotations(kind: type[Task]) -> Mapping[str, Any]:
    """Empty where they cannot be told, such as names that only a type checker imports."""
    try:
        return typing.get_type_hints(kind.__init__)
    except (NameError, TypeError, AttributeError):
        return {}


def _simple_types(annotation: Any) -> tuple[type, ...]:
    """The types of an annotation that says no more than int, float, bool, str, None or several of these; else none."""
    parts = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return tuple(parts) if set(parts) <= set(_NAMES) and set(parts) & set(_KINDS) else ()

"""From `--task NAME` or `--task module:Class` to a class, and with `--model` and `--task-args` to a task.

No framework is imported that is not used, and every refusal names the argument.
"""

import importlib
import importlib.util
import inspect
import json
import sys
import traceback
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.models.keras_import import require_tensorflow_backend
from hvdtrain.task.task import Task

FRAMEWORKS = ("torch", "tensorflow")

BUILT_IN: dict[str, dict[str, str]] = {
    task: {"torch": f"hvdtrain.tasks.torch:Torch{name}", "tensorflow": f"hvdtrain.tasks.keras:Keras{name}"}
    for task, name in {
        "digits": "Digits",
        "cifar10": "Cifar10",
        "mnist": "Mnist",
        "imagenet": "ImageNet",
        "synthetic": "Synthetic",
        "text": "Text",
    }.items()
}
"""Task name → framework → class. The classes of each framework live in a module of their own, which imports it."""

_KINDS: Mapping[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}
_NAMES = {**_KINDS, type(None): "null"}

_IN_SCRIPT = "put the class into a module of its own; in a script or notebook call hvdtrain.train(task=Class)."


def load_task(name: str, framework: str) -> type[Task]:
    """The task's class.

    Args:
        name: a built-in task, or `module:Class` (the module is looked for in the working directory too).
        framework: "torch", "tensorflow", or "auto": what the task says, or else what is installed, torch first.

    Raises `UsageError`: no such task, or its framework is not installed, or Keras has another backend than TensorFlow.
    """
    _require_known(framework)
    if ":" in name:
        importlib.import_module("hvdtrain.models.torchvision_import")  # the task may import torchvision
        return usable(_load_class(name), name, framework)
    if name not in BUILT_IN:
        raise UsageError(
            f"There is no task {name!r}.",
            "Nothing says what to train.",
            f"name a built-in task, or your own as module:Class; {did_you_mean(name, BUILT_IN)}",
        )
    installed = (name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None)
    chosen = framework if framework != "auto" else next(installed, FRAMEWORKS[0])
    _require_usable(chosen)
    return _load_class(BUILT_IN[name][chosen])


def require_installed(framework: str) -> None:
    """Raise `UsageError` unless `framework` can be imported. Does not import it."""
    for module in {"torch": ("torch",), "tensorflow": ("tensorflow", "keras")}[framework]:
        if importlib.util.find_spec(module) is None:
            raise UsageError(
                f"The framework {framework} is not installed: there is no module {module!r}.",
                "The task needs it.",
                f"pip install 'hvdtrain[{framework}]', then `python -m hvdtrain.horovod_wheel install`.",
            )


def _require_known(framework: str) -> None:
    if framework not in (*FRAMEWORKS, "auto"):
        raise UsageError(
            f"There is no framework {framework!r}.",
            "hvdtrain drives PyTorch and TensorFlow/Keras 3.",
            did_you_mean(framework, (*FRAMEWORKS, "auto")),
        )


def usable(kind: type[Task], name: str, framework: str) -> type[Task]:
    """`kind`, which messages call `name`.

    Raises `UsageError`: it is not a whole task, or not of `framework`, or that is not installed or not Keras's backend.
    """
    _require_known(framework)
    if not (inspect.isclass(kind) and issubclass(kind, Task)):
        raise UsageError(
            f"{name} is not a hvdtrain.Task.",
            "The training loop calls a Task's methods.",
            "derive it from hvdtrain.Task.",
        )
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise UsageError(f"{name} does not define {missing}.", "A task must say all of it.", "define these methods.")
    if getattr(kind, "framework", None) not in FRAMEWORKS:
        raise UsageError(
            f"{name} has no framework that hvdtrain knows.",
            "The loop must know which framework its model is made with.",
            did_you_mean(str(getattr(kind, "framework", "")), FRAMEWORKS),
        )
    if framework not in ("auto", kind.framework):
        raise UsageError(
            f"{name} is a {kind.framework} task.",
            f"The framework that is asked for, or that the run was trained with, is {framework}.",
            f"leave --framework out, or give a class with framework = {framework!r}.",
        )
    _require_usable(kind.framework)
    return kind


def _require_usable(framework: str) -> None:
    require_installed(framework)
    if framework == "tensorflow":
        require_tensorflow_backend()


def _load_class(name: str) -> type[Task]:
    module_name, _, class_name = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # console scripts, unlike `python -m`, do not look there
    if module_name not in sys.modules and _find(module_name) is None:
        raise UsageError(
            f"There is no module {module_name!r} for the task {name!r}.",
            "It was looked for in the working directory and among the installed packages.",
            "give it as module:Class, without .py, and start from the folder that holds it.",
        )
    module = _imported(module_name)
    kind = vars(module).get(class_name)
    if kind is None:
        tasks = [n for n, value in vars(module).items() if inspect.isclass(value) and issubclass(value, Task)]
        raise UsageError(
            f"The module {module_name!r} has no {class_name!r}.",
            f"The task was given as {name!r}.",
            _IN_SCRIPT
            if module_name == "__main__"
            else did_you_mean(class_name, tasks)
            if tasks
            else "define a class derived from hvdtrain.Task there.",
        )
    return kind  # type: ignore[no-any-return]


def _imported(module_name: str) -> types.ModuleType:
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        if any(frame.f_globals.get("__name__") == "keras" for frame, _ in traceback.walk_tb(error.__traceback__)):
            require_tensorflow_backend()  # the likely cause: Keras imports its backend, which may not be there
        raise


def _find(module_name: str) -> object | None:
    try:
        return importlib.util.find_spec(module_name)
    except (ImportError, ValueError):
        return None


def task_arguments(kind: type[Task], model: str | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`--task-args` with `--model` among them. Raises UsageError: the task offers no choice of models, or two are
    named."""
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


def argument_defaults(kind: type[Task]) -> dict[str, Any]:
    """What the task's arguments are where they are not given, as JSON gives it back; without what JSON cannot write."""
    defaults = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.default is not parameter.empty:
            with suppress(TypeError, ValueError):
                defaults[name] = json.loads(json.dumps(parameter.default, allow_nan=False))
    return defaults


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

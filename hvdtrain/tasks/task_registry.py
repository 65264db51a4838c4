"""From `--task NAME` or `--task module:Class` to a class, importing no framework that is not used."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path

from hvdtrain.errors import UsageError, did_you_mean
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

_IN_SCRIPT = "put the class into a module of its own; in a script or notebook call hvdtrain.train(task=Class)."


def load_task(name: str, framework: str) -> type[Task]:
    """The task's class.

    Args:
        name: a built-in task, or `module:Class` (the module is looked for in the working directory too).
        framework: "torch", "tensorflow", or "auto": what the task says, or else what is installed, torch first.

    Raises `UsageError`: no such task, or its framework is not installed.
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
    require_installed(chosen)
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

    Raises `UsageError`: it is not a whole task, or not of `framework`, or that is not installed.
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
            f"--framework asks for {framework}.",
            f"leave --framework out, or write a second class with framework = {framework!r}.",
        )
    require_installed(kind.framework)
    return kind


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
    module = importlib.import_module(module_name)
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


def _find(module_name: str) -> object | None:
    try:
        return importlib.util.find_spec(module_name)
    except (ImportError, ValueError):
        return None

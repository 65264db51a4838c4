"""The help of `hvdtrain train`, for users: the first options, all of them in groups, one text per key.

The texts are those of the options' declarations. It imports no parser, so that a page is printed at once.
"""

import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Final, get_args

from hvdtrain.config.option import Group, Options, declarations
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.train_config import DataConfig, TrainConfig

FIRST: Final = tuple(
    ["task", "model", "data.dir", "framework", "epochs", "batch_size", "lr", "output_dir", "resume", "config"]
)
"""What people need first."""

_EXAMPLES: Final = """\
Examples:
  hvdtrain                                          handwritten digits, one process
  horovodrun -np 8 python -m hvdtrain               the same on eight workers, same global batches
  hvdtrain --framework tensorflow --epochs 5        in TensorFlow/Keras 3
  hvdtrain --task cifar10 --model resnet18 --data.dir DIR --data.download
  hvdtrain --task my_module:MyTask --task-args.width 64 --output-dir OUT
  hvdtrain --config run.yaml --lr 0.01              a YAML file, with one key overridden
"""
_EXIT_CODES: Final = """\
Exit codes: 0 done, 1 failure, 2 wrong usage, 75 stopped early with a checkpoint, so that the same
command resumes (after SIGTERM, SIGUSR1, Ctrl-C or --max-time), 130 and 143 stopped without one."""

_NOT_IN_CONFIG: Final = {
    "config": ("FILE", "YAML file with any of these keys, e.g. run.yaml; options override it."),
    "print_config": ("", "print all keys and values as YAML with comments, and exit."),
    "help": ("", "show the first options and the groups."),
    "help_all": ("", "show all options."),
}
_WIDTH: Final = 100
_COLUMN: Final = 32


@dataclass(frozen=True)
class Key:
    """One key of the config as people see it."""

    name: str  # "lr", "data.dir"
    metavar: str  # what its option takes, "" for a switch
    about: str  # one sentence with the default, where it has one
    group: Group  # its heading
    hint: Any  # its type

    @property
    def is_path(self) -> bool:
        """Whether it names a file or folder, in which a leading ~ is the home folder."""
        return re.search(r"\b(DIR|FILE|PATH)\b", self.metavar) is not None


@cache
def keys() -> Mapping[str, Key]:
    """All keys by name, "data.dir" for those of the data."""
    kinds = (TrainConfig, DataConfig, ParallelOptions)
    return MappingProxyType({key.name: key for kind in kinds for key in _keys_of(kind)})


@cache
def groups() -> Mapping[str, tuple[str, ...]]:
    """The headings of the help, and the names of the options below each."""
    names = {group.value: [key.name for key in keys().values() if key.group is group] for group in Group}
    output = names[Group.OUTPUT.value]
    output[:] = ["config", "print_config", *output, "help", "help_all"]
    return MappingProxyType({heading: tuple(members) for heading, members in names.items()})


def option_of(key: str) -> str:
    """ "batch_size" → "--batch-size"."""
    return "--task-args.NAME" if key == "task_args" else "--" + key.replace("_", "-")


def first_options() -> str:
    """The options that people need first."""
    return "Options to begin with:\n" + _rows(FIRST)


def train_page() -> str:
    """`hvdtrain train --help`."""
    listed = "".join(f"  {name:28} {_some(members)}\n" for name, members in groups().items())
    return (
        "usage: hvdtrain train [OPTIONS]\n\nTrain a task on as many workers as the launcher started.\n\n"
        f"{_EXAMPLES}\n{first_options()}\n"
        f"All options, which `hvdtrain train --help-all` explains:\n{listed}\n{_EXIT_CODES}\n"
    )


def all_page() -> str:
    """`hvdtrain train --help-all`."""
    explained = "\n".join(f"{name}:\n{_rows(members)}" for name, members in groups().items())
    return (
        "usage: hvdtrain train [OPTIONS]\n\n"
        "Options may be written with - or _. Each is a key of --config's YAML file too.\n\n"
        f"{explained}\n{_EXIT_CODES}\n"
    )


def main_page(commands: Mapping[str, str]) -> str:
    """`hvdtrain --help`. Args: `commands`: name → one line."""
    listed = "".join(f"  {name:10} {line}\n" for name, line in commands.items())
    return (
        "usage: hvdtrain [COMMAND] [OPTIONS]\n\n"
        "Train a PyTorch or TensorFlow/Keras 3 model on as many workers as the launcher started.\n\n"
        f"{_EXAMPLES}\nCommands (default: train):\n{listed}\n{first_options()}\n"
        "More: `hvdtrain --help-all` explains all options, `hvdtrain COMMAND --help` each command,\n"
        "and `hvdtrain --print-config` prints a YAML file to start from.\n"
        f"{_EXIT_CODES}\n"
    )


PAGES: Final[Mapping[str, Callable[[], str]]] = {"-h": train_page, "--help": train_page, "--help-all": all_page}
"""Options that print a page of help for `hvdtrain train`."""


def _keys_of(kind: type[Options]) -> Iterator[Key]:
    hints = typing.get_type_hints(kind)
    for name, declared in declarations(kind):
        about, default = declared.about, declared.default
        if isinstance(default, (str, int, float)) and default is not False and "default:" not in about:
            shown = f"{default:g}" if isinstance(default, float) else str(default).lower()
            about = f"{about.removesuffix('.')} (default: {shown})."
        metavar = declared.metavar or _metavar(hints[name], default)
        yield Key(kind.prefix + name, metavar, about, declared.group, hints[name])


def _metavar(hint: Any, default: Any) -> str:
    choices = [choice for part in (hint, *get_args(hint)) for choice in get_args(part) if isinstance(choice, str)]
    if choices:
        return f"{{{','.join(dict.fromkeys(choices))}}}"
    kinds = {hint, *get_args(hint)}
    if bool in kinds:
        return "{true,false}" if default else ""
    return "N" if int in kinds else "NUMBER" if float in kinds else "VALUE"


def _rows(names: Iterable[str]) -> str:
    return "".join(_row(name) for name in names)


def _row(name: str) -> str:
    metavar, about = _NOT_IN_CONFIG.get(name) or (keys()[name].metavar, _with_options(keys()[name].about))
    head = f"  {option_of(name)} {metavar}".rstrip()
    if name == "help":
        head = "  -h, --help"
    lines = textwrap.wrap(about, _WIDTH - _COLUMN, break_on_hyphens=False)
    if len(head) < _COLUMN:
        lines[0] = f"{head:{_COLUMN}}{lines[0]}"
        return "\n".join([lines[0], *(" " * _COLUMN + line for line in lines[1:])]) + "\n"
    return "\n".join([head, *(" " * _COLUMN + line for line in lines)]) + "\n"


def _with_options(text: str) -> str:
    """Keys as options: "accumulate_steps" is "--accumulate-steps" on the command line."""
    return re.sub(r"(?<![\w.-])[a-z]+(?:[._][a-z]+)+\b", lambda m: option_of(m[0]) if m[0] in keys() else m[0], text)


def _some(members: tuple[str, ...]) -> str:
    shown = ", ".join(option_of(name) for name in members[:3])
    return f"{shown} and {len(members) - 3} more" if len(members) > 4 else ", ".join(map(option_of, members))

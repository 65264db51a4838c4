"""The help of `hvdtrain train`, for users: the first options, all of them in groups, one text per key.

The texts are those of the config classes' docstrings. Imports no parser, so that a page is there at once.
"""

import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType
from typing import Any, Final, get_args

import docstring_parser

from hvdtrain.config.docstrings import docstring_of
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.train_config import DataConfig, TrainConfig

FIRST: Final = tuple(
    ["task", "model", "data.dir", "framework", "epochs", "batch_size", "lr", "output_dir", "resume", "config"]
)
"""What people need first."""

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Task and model": ("task", "model", "task_args", "framework", "init_weights", "init_weights_exclude"),
    "Data": tuple(f"data.{field.name}" for field in fields(DataConfig)),
    "Length and batches": (
        *("epochs", "max_steps", "max_time", "batch_size", "global_batch_size", "accumulate_steps", "steps_per_call"),
    ),
    "Optimizer": (
        *("optimizer", "momentum", "nesterov", "beta1", "beta2", "eps", "weight_decay", "decay_norm_and_bias"),
        *("trust_coefficient", "ema_decay"),
    ),
    "Learning rate": (
        *("lr", "lr_scaling", "reference_batch_size", "warmup_epochs", "lr_schedule", "lr_power", "lr_min"),
        *("lr_milestones", "lr_gamma"),
    ),
    "Precision, memory and speed": ("precision", "activation_checkpointing", "compile", "channels_last"),
    "Gradients and communication": (
        *("max_grad_norm", "sync_batch_norm", "compression", "powersgd_rank", "reduce_op", "sync_every"),
        *("gradient_sync", "shard", "process_sets", "sparse_gradients", "bucket_cap_mb", "tune", "data_parallel"),
        *("stall_timeout", "watchdog", "watchdog_action"),
    ),
    "Model in stages": tuple(f"parallel.{field.name}" for field in fields(ParallelOptions)),
    "Validation and stopping": (*("best_metric", "best_mode", "early_stopping_patience", "early_stopping_min_delta"),),
    "Checkpoints and resume": (
        *("output_dir", "resume", "keep_checkpoints", "checkpoint_interval", "checkpoint_every", "mtbf"),
        *("checkpoint_mode", "checkpoint_overlap", "checkpoint_url", "checkpoint_writers", "checkpoint_failure"),
        "check_weights_every",
    ),
    "Metrics": ("loggers", "logger_histograms", "logger_pictures", "log_grad_norm"),
    "Repeatability": ("seed", "deterministic"),
    "Output and help": (
        *("config", "print_config", "dry_run", "log_interval", "progress", "report", "log_level"),
        *("trace", "debug", "help", "help_all"),
    ),
}
"""Every option is in one of them."""

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
_METAVARS: Final = {
    "task": "NAME|MODULE:CLASS",
    "model": "NAME",
    "framework": "{auto,torch,tensorflow}",
    "data.dir": "DIR",
    "data.pipe_dir": "DIR",
    "data.pipe_plan": "FILE",
    "max_time": "TIME",
    "checkpoint_every": "{TIME,auto}",
    "checkpoint_url": "URL",
    "mtbf": "TIME",
    "watchdog": "{auto,never,TIME}",
    "output_dir": "DIR",
    "resume": "{auto,never,PATH}",
    "init_weights": "PATH",
    "init_weights_exclude": "NAMES",
    "lr_milestones": "NUMBER,...",
    "best_metric": "NAME",
    "process_sets": "{node,RANKS}",
    "parallel.devices": "DEVICE,...",
    "parallel.micro_batches": "{auto,N}",
    "parallel.cuts": "LAYER,...",
    "trace": "{FIRST:LAST,N}",
    "loggers": "{auto,none,NAME,...}",
}
_WIDTH: Final = 100
_COLUMN: Final = 32


@dataclass(frozen=True)
class Key:
    """One key of the config as people see it.

    Attributes:
        metavar: what its option takes, "" for a switch.
        about: one sentence with the default, where it has one.
    """

    metavar: str
    about: str


@cache
def keys() -> Mapping[str, Key]:
    """All keys by name, "data.dir" for those of the data."""
    groups = {"data": DataConfig, "parallel": ParallelOptions}
    own = _keys_of(TrainConfig, "")
    for name, kind in groups.items():
        own = {**own, **_keys_of(kind, f"{name}.")}
        own.pop(name)
    return MappingProxyType(own)


def option_of(key: str) -> str:
    """ "batch_size" → "--batch-size"."""
    return "--task-args.NAME" if key == "task_args" else "--" + key.replace("_", "-")


def first_options() -> str:
    """The options that people need first."""
    return "Options to begin with:\n" + _rows(FIRST)


def train_page() -> str:
    """`hvdtrain train --help`."""
    groups = "".join(f"  {name:28} {_some(members)}\n" for name, members in GROUPS.items())
    return (
        "usage: hvdtrain train [OPTIONS]\n\nTrain a task on as many workers as the launcher started.\n\n"
        f"{_EXAMPLES}\n{first_options()}\n"
        f"All options, which `hvdtrain train --help-all` explains:\n{groups}\n{_EXIT_CODES}\n"
    )


def all_page() -> str:
    """`hvdtrain train --help-all`."""
    groups = "\n".join(f"{name}:\n{_rows(members)}" for name, members in GROUPS.items())
    return (
        "usage: hvdtrain train [OPTIONS]\n\n"
        "Options may be written with - or _. Each is a key of --config's YAML file too.\n\n"
        f"{groups}\n{_EXIT_CODES}\n"
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


def _keys_of(kind: type[Any], prefix: str) -> dict[str, Key]:
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for told in docstring_parser.parse(docstring_of(base)).params:
            texts[told.arg_name] = " ".join((told.description or "").split())
    hints = typing.get_type_hints(kind)
    return {prefix + f.name: _key(prefix + f.name, hints[f.name], f.default, texts[f.name]) for f in fields(kind)}


def _key(name: str, hint: Any, default: Any, text: str) -> Key:
    if isinstance(default, (str, int, float)) and default is not False and "default:" not in text:
        shown = f"{default:g}" if isinstance(default, float) else str(default).lower()
        text = f"{text.removesuffix('.')} (default: {shown})."
    return Key(_METAVARS.get(name) or _metavar(hint, default), text)


def _metavar(hint: Any, default: Any) -> str:
    choices = [one for part in (hint, *get_args(hint)) for one in get_args(part) if isinstance(one, str)]
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

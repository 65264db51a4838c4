"""What a run folder says about its run: the config, the environment and the result, as far as they can be read."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from hvdtrain.errors import UsageError
from hvdtrain.history.reading import UNREADABLE, UnusableFileError, read_bounded, reason

_CONFIG_BYTES: Final = 2**20
_ENVIRONMENT_BYTES: Final = 16 * 2**20  # it names the host of each rank
_RESULT_BYTES: Final = 64 * 2**20  # it has the seconds of each rank, and a line for each restart
_OF_A_RUN: Final = (
    *("env.json", "metrics.jsonl", "result.json", "logs/rank_N.log", "heartbeats/rank_N.json"),
    *("heartbeats/host_of_rank_N.json", "logs/host_N.log", "checkpoints/latest"),
)
"""One of these is in every folder that a run has begun to fill, and in few others. Without a shared file system, the
folders of other hosts have only what their ranks write."""

_NEEDED: Final = frozenset(
    (
        *("config.yaml", "env.json", "metrics.jsonl", "metrics.csv", "hashes.jsonl", "result.json"),
        *("checkpoints", "audit", "logs", "heartbeats"),
    )
)
"""What no other file of a run folder holds."""


@dataclass(frozen=True)
class RunFacts:
    """The facts of one run. Files of an older version may lack any key, so readers ask by `get`."""

    path: Path  # the run folder
    # all options by name, those of the data in a mapping "data"; empty where it cannot be read
    config: Mapping[str, Any]
    environment: Mapping[str, Any]  # versions, platform, topology and argv; empty where it cannot be read
    result: Mapping[str, Any] | None  # None where it cannot be read, or where there is none, as of a run that goes on
    problems: tuple[str, ...]  # a sentence for each file that is missing, half written or broken


def read_facts(folder: Path) -> RunFacts:
    """Read the facts of the run in `folder`; UsageError where there is no run."""
    require_run(folder)
    problems: list[str] = []
    config = _read(folder / "config.yaml", _CONFIG_BYTES, partial(yaml.load, Loader=_Loader), problems)
    environment = _read(folder / "env.json", _ENVIRONMENT_BYTES, json.loads, problems)
    result = read_result(folder, problems)
    if result is not None and not (isinstance(result.get("status"), str) and isinstance(result.get("steps"), int)):
        problems.append("result.json does not say how the run ended, or after how many steps.")
    return RunFacts(folder, config or {}, environment or {}, result, tuple(problems))


def read_result(folder: Path, problems: list[str] | None = None) -> Mapping[str, Any] | None:
    """The run's result.json alone, as in `RunFacts`; what is wrong with it is added to `problems`."""
    if not (folder / "result.json").exists():
        return None
    return _read(folder / "result.json", _RESULT_BYTES, json.loads, [] if problems is None else problems)


def is_run(folder: Path) -> bool:
    """Whether `folder` holds anything of a run. Raises OSError where it cannot be looked at."""
    return any(
        (folder / name).exists() or ("N" in name and any(folder.glob(name.replace("N", "*")))) for name in _OF_A_RUN
    )


def run_of(path: Path) -> Path | None:
    """The folder of the run that needs the file `path`, to go on or as its account; None for any other file."""
    path = path.absolute()
    for folder in path.parents:
        first = path.relative_to(folder).parts[0]
        if first in _NEEDED and is_run(folder):
            return folder
    return None


def require_run(folder: Path) -> None:
    """Raises `UsageError` where `folder` is not a run folder."""
    hint = "name a run's folder; `hvdtrain ls` lists the runs under runs/."
    try:
        if not folder.exists():
            raise UsageError(f"There is no folder {folder}.", "No run can be read there.", hint)
        if not folder.is_dir():
            raise UsageError(f"{folder} is a file.", "A run is a folder.", hint)
        if not is_run(folder):
            raise UsageError(f"{folder} holds no run.", f"It has none of {', '.join(_OF_A_RUN)}.", hint)
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}.", "No run can be read there.", hint) from error


def _read(path: Path, most: int, parse: Callable[[bytes], Any], problems: list[str]) -> Mapping[str, Any] | None:
    """The mapping in `path`, or None and one more of `problems`."""
    try:
        value = parse(read_bounded(path, most))
        if not isinstance(value, dict):
            raise UnusableFileError("holds no keys")
        return value
    except FileNotFoundError:
        problems.append(f"{path.name} is missing.")
    except UNREADABLE as error:
        problems.append(f"{path.name} {reason(error)}.")
    except (ValueError, yaml.YAMLError, RecursionError):
        problems.append(f"{path.name} is damaged or half written.")
    return None


class _Loader(yaml.SafeLoader):
    """Plain values only. A few nested aliases could stand for more values than any memory holds; runs write none."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias")
        return super().compose_node(parent, index)

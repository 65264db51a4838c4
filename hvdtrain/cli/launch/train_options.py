"""Whether machines with these options would train: `python -m hvdtrain.cli.launch.train_options …` exits 0 or 2."""

import sys
from collections.abc import Sequence

from hvdtrain.config.option_help import PAGES
from hvdtrain.config.parser import parse_train_config
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.tasks.task_registry import BUILT_IN

_PRINTERS = (*PAGES, "--print-config")


def require_trains(words: Sequence[str]) -> TrainConfig:
    """The config that workers get from these options; UsageError where they would refuse, or train nothing."""
    printer = next((word for word in words if word.partition("=")[0].replace("_", "-") in _PRINTERS), None)
    if printer is not None:
        raise _trains_nothing(printer)
    config = parse_train_config(words)
    if config.dry_run:
        raise _trains_nothing("--dry-run")
    if ":" not in config.task and config.task not in BUILT_IN:
        raise UsageError(
            f"There is no task {config.task!r}.",
            "Nothing says what to train.",
            f"name a built-in task, or your own as module:Class; {did_you_mean(config.task, BUILT_IN)}",
        )
    return config


def _trains_nothing(option: str) -> UsageError:
    return UsageError(
        f"The workers' options have {option}.",
        "Machines would be paid for, and train nothing.",
        "leave it out; to look at the job itself, put --dry-run before the --.",
    )


def main(argv: Sequence[str]) -> int:
    try:
        require_trains(argv)
    except UsageError as error:
        sys.stderr.write(f"hvdtrain: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

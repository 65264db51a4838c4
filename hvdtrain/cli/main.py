"""Choose the subcommand and run it; `hvdtrain.cli.failure` turns every way to fail into a message and an exit code."""

import atexit
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence

from hvdtrain.cli.signs import PLAIN, encode_in_ascii
from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.failure_record import claim_failure_file

COMMANDS = {
    "train": ("hvdtrain.cli.train", "train a task"),
    "shard": ("hvdtrain.cli.shard", "record files: index, plan, verify, convert, bench, pipe mode"),
    "ls": ("hvdtrain.cli.ls", "list runs with their state and result"),
    "top": ("hvdtrain.cli.top", "watch all workers of a run: what each does, how fast, who is silent"),
    "logs": ("hvdtrain.cli.logs", "the logs of all workers of a run, merged by time: --follow"),
    "compare": ("hvdtrain.cli.compare", "what differs between runs: options, versions, data, results"),
    "report": ("hvdtrain.cli.report", "write one HTML page about a run, or about several: curves, times, proof"),
    "checkpoint": ("hvdtrain.cli.checkpoint", "a run's checkpoints: ls, verify, prune, convert"),
    "launch": (
        "hvdtrain.cli.launch",
        "start a job: local, ssh, horovodrun, mpirun, ray, spark, slurm, pbs, lsf, sagemaker, kubernetes",
    ),
    "doctor": ("hvdtrain.cli.doctor", "find what would go wrong before a job starts, on all hosts: -H a:4,b:4"),
    "bench": ("hvdtrain.cli.bench", "measure the speed of training steps or of allreduces: step, allreduce"),
    "plan": ("hvdtrain.cli.plan", "predict how long each way to divide a training takes, on 1 to 10,000 workers"),
    "chaos": ("hvdtrain.cli.chaos", "train while workers are killed and stopped, and prove that nothing is lost"),
    "evaluate": ("hvdtrain.cli.evaluate", "measure a run's model on records, by one or many workers"),
    "predict": ("hvdtrain.cli.predict", "write what a run's model predicts for each record: npz, jsonl, parquet"),
    "export": ("hvdtrain.cli.export", "write a run's weights or model as a file: state_dict, ONNX, SavedModel, ..."),
    "env": ("hvdtrain.cli.env", "show versions, and which variable decided rank and size: --explain"),
    "completion": ("hvdtrain.cli.completion", "a script for the Tab key of a shell: bash, zsh, fish"),
}
"""Subcommand → (module with `run(argv) -> int`, one line of help). Each is imported only when it is used."""

INTERNAL = {"call": "hvdtrain.cli.python_calls.rank_call"}
"""Subcommand → module, of what hvdtrain itself starts. No help names them."""

_OTHER_WORDS = {
    **dict.fromkeys(["run", "fit", "training", "learn"], "train"),
    **dict.fromkeys(["infer", "inference", "predictions"], "predict"),
    **dict.fromkeys(["eval", "validate", "test"], "evaluate"),
    **dict.fromkeys(["start", "submit", "srun", "torchrun", "mpirun", "horovodrun", "local", "ssh", "slurm"], "launch"),
    **dict.fromkeys(["pbs", "qsub", "lsf", "bsub", "jsrun", "ray", "spark"], "launch"),
    **dict.fromkeys(["check", "diagnose", "preflight"], "doctor"),
    **dict.fromkeys(["benchmark", "measure", "profile"], "bench"),
    **dict.fromkeys(["save", "onnx", "convert-weights"], "export, which writes a model for other programs"),
    **dict.fromkeys(["data", "convert", "index", "verify", "audit"], "shard"),
    **dict.fromkeys(["checkpoints", "ckpt", "prune"], "checkpoint"),
    **dict.fromkeys(["html", "plot", "plots", "curves", "dashboard", "summary"], "report"),
    **dict.fromkeys(["list", "runs", "history"], "ls"),
    **dict.fromkeys(["diff", "cmp"], "compare"),
    **dict.fromkeys(["tail", "log", "cat"], "logs"),
    **dict.fromkeys(["watch", "monitor", "status", "htop", "ps"], "top"),
    **dict.fromkeys(["completions", "autocomplete", "complete"], "completion"),
    **dict.fromkeys(["info", "version", "versions", "environment"], "env"),
}
"""Commands of other programs → what they are here."""


def _open_standard_files() -> None:
    """Where standard input, output or error is closed, a pipe of ours would get its number, and be written to."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. In a job of many ranks a failure leaves the process at once."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_standard_files()
    claim_failure_file()
    atexit.register(gc.freeze)  # else Python's last collection visits all that a framework has made, for a second
    encode_in_ascii()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAIN)  # a terminal that cannot show × must not end a training run
    try:
        code = _dispatch(arguments)
        if not getattr(sys.stdout, "closed", False):
            sys.stdout.flush()  # at exit Python would report its failure, with an exit code of its own
        return code
    except (Exception, KeyboardInterrupt) as error:
        from hvdtrain.cli.failure import leave_after

        return leave_after(error, in_full=any(argument.partition("=")[0] == "--debug" for argument in arguments))


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if arguments == ["--version"]:
        from hvdtrain.version import __version__

        print(f"hvdtrain {__version__}")
        return 0
    if arguments in (["help"], ["--help"], ["-h"]):
        from hvdtrain.config.option_help import main_page

        print(main_page({name: line for name, (_, line) in COMMANDS.items()}), end="")
        return 0
    if name in (None, "train") and arguments and arguments[-1] in ("--help", "--help-all"):
        from hvdtrain.config.option_help import PAGES

        print(PAGES[arguments[-1]](), end="")  # without waiting for the parser
        return 0
    if name == "help":  # `hvdtrain help export`
        return _dispatch([*arguments[1:], "--help"])
    if name is not None and name not in COMMANDS and name not in INTERNAL:
        near = f"did you mean {_OTHER_WORDS[name]}?" if name in _OTHER_WORDS else did_you_mean(name, COMMANDS)
        raise UsageError(f"There is no command {name!r}.", "Nothing was started.", near)
    _require_working_directory()
    module = importlib.import_module(INTERNAL[name] if name in INTERNAL else COMMANDS[name or "train"][0])
    code: int = module.run(arguments[1:] if name else arguments)
    return code


def _require_working_directory() -> None:
    """Modules and relative paths are looked for there, by libraries too."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UsageError(
            "The working directory was deleted.",
            "Relative paths would lead nowhere.",
            'change to a folder that exists; to this one, if it was made again: cd "$PWD".',
        ) from error

"""Choose the subcommand, run it, and turn every way to fail into a message and an exit code."""

import atexit
import gc
import importlib
import io
import logging
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress

from hvdtrain.cli.signs import PLAIN, encode_in_ascii
from hvdtrain.errors import HvdtrainError, PeerError, UsageError, did_you_mean
from hvdtrain.failure_record import Kind, claim_failure_file, write_failure
from hvdtrain.topology import Topology, detect_topology

COMMANDS = {
    "train": ("hvdtrain.cli.train", "train a task"),
    "shard": ("hvdtrain.cli.shard", "record files: index, plan, verify, convert, bench, pipe mode"),
    "ls": ("hvdtrain.cli.ls", "list runs with their state and result"),
    "top": ("hvdtrain.cli.top", "watch all workers of a run: what each does, how fast, who is silent"),
    "logs": ("hvdtrain.cli.logs", "the logs of all workers of a run, merged by time: --follow"),
    "compare": ("hvdtrain.cli.compare", "what differs between runs: options, versions, data, results"),
    "report": ("hvdtrain.cli.report", "write one HTML page about a run, or about several: curves, times, proof"),
    "checkpoint": ("hvdtrain.cli.checkpoint", "a run's checkpoints: ls, verify, prune, convert"),
    "launch": ("hvdtrain.cli.launch", "start a job: local, ssh, horovodrun, mpirun, slurm, sagemaker, kubernetes"),
    "doctor": ("hvdtrain.cli.doctor", "find what would go wrong before a job starts, on all hosts: -H a:4,b:4"),
    "bench": ("hvdtrain.cli.bench", "measure the speed of training steps or of allreduces: step, allreduce"),
    "plan": ("hvdtrain.cli.plan", "predict how long each way to divide a training takes, on 1 to 10,000 workers"),
    "chaos": ("hvdtrain.cli.chaos", "train while workers are killed and stopped, and prove that nothing is lost"),
    "export": ("hvdtrain.cli.export", "write a run's weights or model as a file: state_dict, ONNX, SavedModel, ..."),
    "env": ("hvdtrain.cli.env", "show versions, and which variable decided rank and size: --explain"),
    "completion": ("hvdtrain.cli.completion", "a script for the Tab key of a shell: bash, zsh, fish"),
}
"""Subcommand → (module with `run(argv) -> int`, one line of help). Each is imported only when it is used."""

_OTHER_WORDS = {
    **dict.fromkeys(["run", "fit", "training", "learn"], "train"),
    **dict.fromkeys(["eval", "evaluate", "validate", "test"], "train, which validates after each epoch"),
    **dict.fromkeys(["start", "submit", "srun", "torchrun", "mpirun", "horovodrun", "local", "ssh", "slurm"], "launch"),
    **dict.fromkeys(["check", "diagnose", "preflight"], "doctor"),
    **dict.fromkeys(["benchmark", "measure", "profile"], "bench"),
    **dict.fromkeys(
        ["save", "onnx", "predict", "infer", "convert-weights"], "export, which writes a model for other programs"
    ),
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. In a job of many ranks a failure leaves the process at once."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    claim_failure_file()
    atexit.register(gc.freeze)  # else Python's last collection visits all that a framework has made, for a second
    encode_in_ascii()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAIN)  # a terminal that cannot show × must not end a training run
    try:
        return _dispatch(arguments)
    except KeyboardInterrupt:
        _leave_record("signal", "interrupted by SIGINT", 130)
        return _leave(130, "interrupted")
    except BrokenPipeError as error:
        if _is_output_closed():  # as in `hvdtrain env | head -3`
            return 128 + signal.SIGPIPE
        return _fail(error, arguments)
    except PeerError as error:
        _leave_record("lost_rank", str(error), error.exit_code)
        return _leave(error.exit_code, f"{who()} stopped: {error.fact} {error.conflict}")
    except HvdtrainError as error:
        return _refuse(error, error.exit_code, arguments)
    except Exception as error:
        if _is_about_data(error):
            return _refuse(error, 1, arguments)
        return _fail(error, arguments)


def _is_output_closed() -> bool:
    """Whether nobody reads what this process prints, and it is alone: in a job that is a failure like any other."""
    topology = _own_topology()
    if topology is not None and topology.is_distributed:
        return False
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in output.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports it at exit
    return True


def _refuse(error: Exception, code: int, arguments: Sequence[str]) -> int:
    if _wants_all(arguments):
        traceback.print_exc()
    _leave_record("error", str(error), code)
    return _leave(code, f"{who()}: {error}")


def _wants_all(arguments: Sequence[str]) -> bool:
    return any(argument.partition("=")[0] == "--debug" for argument in arguments)


def _fail(error: Exception, arguments: Sequence[str]) -> int:
    """An exception of the user's code, or a defect of ours. Rank 0 prints its traceback, every other rank one line.

    The traceback of another rank is printed by `hvdtrain launch`, unless rank 0 has failed alike. Other launchers take
    no record, so the rank prints it itself, unless its launcher ends it first because rank 0 has failed too.
    """
    from hvdtrain.cli.failure import OTHER_LAUNCHERS_SECONDS, Failure, log_file

    failure, topology = Failure(error), _own_topology()
    whole, shown = f"{who()} failed:\n{failure.full}", f"{who()} failed{failure.traceback(log_file())}"
    if _wants_all(arguments):
        _leave_record("exception", failure.line(), 1)
        return _leave(1, whole)
    _note_in_log(whole)
    if topology is None or topology.is_root:
        _leave_record("exception", failure.line(), 1)
        return _leave(1, shown, in_log=False)
    line = f"{who()} failed: {failure.line()}"
    if _leave_record("exception", failure.line(), 1, shown):
        return _leave(1, line, in_log=False)
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
    with suppress(KeyboardInterrupt):
        time.sleep(OTHER_LAUNCHERS_SECONDS)
    return _leave(1, shown, in_log=False)


def _leave_record(kind: Kind, cause: str, code: int, detail: str = "") -> bool:
    topology = _own_topology()
    return write_failure(kind, topology.rank if topology else 0, cause, code, detail)


def _is_about_data(error: Exception) -> bool:
    """Whether it is a ShardingError. Only who has imported data_sharding raises one: launchers need not."""
    errors = sys.modules.get("data_sharding.errors")
    return errors is not None and isinstance(error, errors.ShardingError)


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if arguments in (["--version"], ["help"], ["--help"], ["-h"]):
        return _print_about(arguments[0])
    if name in (None, "train") and arguments and arguments[-1] in ("--help", "--help-all"):
        from hvdtrain.config.option_help import PAGES

        print(PAGES[arguments[-1]](), end="")  # without waiting for the parser
        return 0
    if name == "help":  # `hvdtrain help export`
        return _dispatch([*arguments[1:], "--help"])
    if name is not None and name not in COMMANDS:
        near = f"did you mean {_OTHER_WORDS[name]}?" if name in _OTHER_WORDS else did_you_mean(name, COMMANDS)
        raise UsageError(f"There is no command {name!r}.", "Nothing was started.", near)
    module = importlib.import_module(COMMANDS[name or "train"][0])
    code: int = module.run(arguments[1:] if name else arguments)
    return code


def _print_about(what: str) -> int:
    if what == "--version":
        from hvdtrain.version import __version__

        print(f"hvdtrain {__version__}")
    else:
        from hvdtrain.config.option_help import main_page

        print(main_page({name: line for name, (_, line) in COMMANDS.items()}), end="")
    return 0


def _leave(code: int, message: str, in_log: bool = True) -> int:
    """Say why, and end this process so that the others notice.

    One write for the whole message: launchers mix ranks' outputs line by line. In a job, `os._exit`: an orderly exit
    would run Horovod's shutdown, which waits for ranks that are busy with something else.
    """
    topology = _own_topology()
    if code == UsageError.exit_code and topology is not None and not topology.is_root:
        message = message.replace("\n", " ")  # rank 0 most likely says the same; whoever is first ends the job
    sys.stdout.flush()
    sys.stderr.write(message.rstrip() + "\n")
    sys.stderr.flush()
    if in_log:
        _note_in_log(message)
    if topology is not None and topology.is_distributed:
        os._exit(code)
    return code


def _note_in_log(message: str) -> None:
    """Write the message to this rank's log file too, if there is one; it is already on the console."""
    for handler in logging.getLogger("hvdtrain").handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handle(logging.makeLogRecord({"name": "hvdtrain.run", "levelname": "ERROR", "msg": message}))


def _own_topology() -> Topology | None:
    try:
        return detect_topology(os.environ)
    except UsageError:
        return None


def who() -> str:
    """This process, in messages: "rank 1 on node7", or "hvdtrain" where it is alone."""
    topology = _own_topology()
    return f"rank {topology.rank} on {socket.gethostname()}" if topology and topology.is_distributed else "hvdtrain"

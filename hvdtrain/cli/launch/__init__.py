"""`hvdtrain launch LAUNCHER [-np N] [-H a:4,b:4] [--dry-run] ... -- train ...`: start a job, here or on a cluster."""

import importlib
from collections.abc import Sequence
from typing import Final

from hvdtrain import extensions
from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.launch.job_spec import is_script
from hvdtrain.launch.launcher_api import Launcher
from hvdtrain.launch.option_groups import HOSTS

BUILT_IN: Final = {
    "local": "hvdtrain.launch.local",
    "ssh": "hvdtrain.launch.ssh.launcher",
    "horovodrun": "hvdtrain.launch.horovodrun",
    "mpirun": "hvdtrain.launch.mpirun",
    "ray": "hvdtrain.launch.ray.launcher",
    "spark": "hvdtrain.launch.spark.launcher",
    "slurm": "hvdtrain.launch.slurm",
    "pbs": "hvdtrain.launch.pbs",
    "lsf": "hvdtrain.launch.lsf",
    "sagemaker": "hvdtrain.cli.launch.sagemaker",
    "kubernetes": "hvdtrain.launch.kubernetes",
}
"""Name → module whose LAUNCHER it is. Each is imported only when it is used."""

_SYNONYMS: Final = {
    **dict.fromkeys(["--nproc-per-node", "--nproc", "--num-proc", "--num-processes", "--num-workers", "-n"], "-np"),
    **dict.fromkeys(["--num-gpus", "--gpus", "--devices", "--world-size", "--workers"], "-np"),
    **dict.fromkeys(["--host", "--worker-hosts"], "-H"),
    **dict.fromkeys(["--machinefile", "--host-file"], "--hostfile"),
    **dict.fromkeys(["--walltime", "--time", "-W"], "--time-limit"),
    **dict.fromkeys(["--gpus-per-node", "--ngpus"], "--gpus-per-host"),
    **dict.fromkeys(["--ntasks-per-node", "--tasks-per-node", "--ppn", "--mpiprocs"], "--slots-per-host"),
    **{"--partition": "--queue", "--queue": "--partition"},
}
"""How torchrun, accelerate, deepspeed, schedulers and others call it."""


def run(argv: Sequence[str]) -> int:
    """Start what `argv` says; returns the exit code, or becomes the launcher and does not return. Raises UsageError: a
    launcher, option, host or job that cannot be, or a launcher's program that is not there."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        return _print_help()
    launcher = load_launcher(argv[0])
    words = list(argv[1:])
    at = words.index("--") if "--" in words else len(words)
    command = tuple(words[at + 1 :]) or ("train",)
    options = _parser(argv[0], launcher).parse(words[:at])
    _require_command(command)
    if options.dry_run and not launcher.checks_command:  # of a job that starts, the workers check them
        _require_options(command)
    return launcher.start(options, command)


def launcher_names() -> list[str]:
    """Ours, then those of other packages."""
    added = extensions.names_in(extensions.LAUNCHERS)
    return [*BUILT_IN, *(name for name in added if name not in BUILT_IN)]


def load_launcher(name: str) -> Launcher:
    """The launcher of that name; UsageError where there is none, or a package adds something else."""
    if name in BUILT_IN:
        launcher = importlib.import_module(BUILT_IN[name]).LAUNCHER
    else:
        launcher = extensions.load(extensions.LAUNCHERS, name)
    if launcher is None:
        near = did_you_mean(name, launcher_names())
        raise UsageError(f"There is no launcher {name!r}.", "Nothing was started.", near)
    if not isinstance(launcher, Launcher):
        raise UsageError(
            f"The launcher {name!r} of another package is of type {type(launcher).__name__}.",
            "A launcher is a hvdtrain.launch.launcher_api.Launcher.",
            "see docs/extending.md, or uninstall that package.",
        )
    return launcher


def _parser(name: str, launcher: Launcher) -> CommandParser:
    parser = CommandParser(
        f"hvdtrain launch {name}",
        "Nothing was started.",
        "options of hvdtrain itself come after --: ... -- train --epochs 3.",
        _SYNONYMS,
        usage=f"hvdtrain launch {name} [OPTIONS] [-- train ...]",
        description=launcher.line,
        epilog="What follows -- is hvdtrain's own command, or a script of yours (SCRIPT.py ...); default: train.",
    )
    for names, settings in launcher.options:
        parser.add_argument(*names, **settings)
    where = parser.add_mutually_exclusive_group()
    for names, settings in HOSTS if launcher.takes_hosts else ():
        where.add_argument(*names, **settings)
    return parser


def _require_options(command: tuple[str, ...]) -> None:
    """Raise `UsageError` for options that every worker would refuse. A config file is theirs and need not be here."""
    names = {word.partition("=")[0] for word in command}
    if command[0] != "train" or names & {"--config", "-h", "--help", "--help-all", "--print-config", "--print_config"}:
        return
    from hvdtrain.config.parser import parse_train_config

    parse_train_config(command[1:])


def _print_help() -> int:
    print("usage: hvdtrain launch LAUNCHER [OPTIONS] [-- train ...]\n")
    for name in launcher_names():
        print(f"  {name:11} {_line_of(name)}")
    print("\n`hvdtrain launch LAUNCHER --help` explains each; `--dry-run` prints what would run.")
    return 0


def _line_of(name: str) -> str:
    try:
        return load_launcher(name).line
    except UsageError as error:  # of another package: the others can be used
        return f"cannot be used: {error.fact}"


def _require_command(command: tuple[str, ...]) -> None:
    from hvdtrain.cli.main import COMMANDS, INTERNAL

    valid = [name for name in COMMANDS if name != "launch"]
    known = command[0] in (*valid, *INTERNAL) or command[0].startswith("-")
    if not known and not is_script(command):
        raise UsageError(
            f"The command to launch is {command[0]!r}.",
            "This is neither a command of hvdtrain that workers can run, nor a Python script.",
            f"for a script write SCRIPT.py or python …; {did_you_mean(command[0], valid)}",
        )

"""The command line of `python -m hvdtrain.horovod_wheel`: setup, carry, install, start-up, recipe, pin."""

import argparse
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from hvdtrain.end_signals import exiting_at
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.horovod_wheel.carried import carry
from hvdtrain.horovod_wheel.environment import DEFAULT_EXTRAS, set_up, write_start_up
from hvdtrain.horovod_wheel.install import install
from hvdtrain.horovod_wheel.pip_packages import write_pins
from hvdtrain.horovod_wheel.recipe import find_recipe
from hvdtrain.horovod_wheel.toolchain import find_mpi


def parser() -> argparse.ArgumentParser:
    about = "Set up an environment for hvdtrain, or build Horovod alone: setup, carry, install, start-up, recipe, pin."
    top = argparse.ArgumentParser(prog="python -m hvdtrain.horovod_wheel", description=about)
    commands = top.add_subparsers(dest="command", required=True)
    setup = commands.add_parser("setup", help="make or update a virtual environment with all that hvdtrain needs")
    setup.add_argument("--venv", type=Path, default=Path(".venv"), help="default: .venv")
    setup.add_argument("--add", default="", metavar="EXTRAS", help="extras to have besides, for good")
    setup.add_argument("--carried", type=Path, metavar="DIR", help="what `carry` has filled; no network is used")
    carrying = commands.add_parser("carry", help="download what a machine without a network needs for its set-up")
    carrying.add_argument("--into", type=Path, required=True, metavar="DIR")
    carrying.add_argument("--there", type=Path, metavar="FILE", help="what `pip list --format=freeze` prints there")
    carrying.add_argument("--python-version", default="3.12", metavar="X.Y", help="the Python there (default: 3.12)")
    for command in (setup, carrying, commands.add_parser("pin", help="write constraints.txt again")):
        command.add_argument(
            "--root", type=Path, default=Path(), help="folder of pyproject.toml (default: this folder)"
        )
        command.add_argument("--extras", help=f"default: those of the last set-up, at first {DEFAULT_EXTRAS}")
    installing = commands.add_parser("install", help="install Horovod into this Python's environment")
    installing.add_argument("--constraints", type=Path, help="pip's constraints file")
    installing.add_argument("--copy-to", type=Path, metavar="DIR", help="leave a copy of the wheel there")
    installing.add_argument("--with-nccl", action="store_true", help="fail where only a build for CPUs is possible")
    commands.add_parser(
        "start-up", help="let this environment's Python help scripts that import torchvision or Horovod"
    )
    commands.add_parser("recipe", help="show everything that decides the binary, and its key")
    return top


def show_recipe() -> None:
    """Prints the recipe of this environment as JSON; `UsageError` where no MPI is installed yet."""
    mpi = find_mpi()
    if mpi is None:
        raise UsageError(
            "There is no MPI in this environment or on this system yet.",
            "The recipe depends on it.",
            "run `python -m hvdtrain.horovod_wheel install` first, which brings one.",
        )
    recipe = find_recipe(mpi)
    print(json.dumps({"key": recipe.key(), **asdict(recipe)}, indent=2))


def main(arguments: list[str]) -> int:
    """Runs one command and returns the exit code: 0 done, 1 failed, 2 the user has to install something first."""
    options = parser().parse_args(arguments)
    try:
        # A terminal sends SIGINT to parent and child, and the parent then sends SIGTERM to the child.
        with exiting_at((signal.SIGINT, signal.SIGTERM)):
            _run(options)
    except HvdtrainError as error:
        print(f"\nERROR: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _run(options: argparse.Namespace) -> None:
    if options.command == "setup":
        set_up(options.root.absolute(), options.venv.absolute(), options.extras, options.add, options.carried)
    elif options.command == "carry":
        extras = options.extras or DEFAULT_EXTRAS
        carry(options.root.absolute(), options.into, extras, options.there, options.python_version)
    elif options.command == "install":
        install(options.constraints, options.copy_to, options.with_nccl)
    elif options.command == "start-up":
        write_start_up()
    elif options.command == "pin":
        write_pins(options.root.absolute(), options.extras or f"{DEFAULT_EXTRAS},dev")
    else:
        show_recipe()

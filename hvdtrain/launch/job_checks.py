"""All checks of a job before anything is rendered. Each function raises UsageError for the first."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.launch.hosts.host import Host, total_slots

BINDINGS = ("auto", "none", "core")
NIC = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}")

_MOST = {"-np": 1_000_000, "--ssh-port": 65_535}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]{0,254}")


def require_command(command: Sequence[str], python: str, working_dir: str | None) -> None:
    """Refuse a command that no launcher can pass on, and a folder that hosts could not share."""
    if not command:
        raise UsageError("The job has no command.", "There is nothing to start.", "end with `-- train ...`.")
    if any("\0" in word or "\n" in word for word in (*command, python, working_dir or "")):
        fact = "The job's command has a line break or a zero byte in it."
        raise UsageError(fact, "Launchers pass commands on by lines.", "put such a value into a file for --config.")
    if not python or python.startswith("-"):
        raise UsageError(f"The interpreter is {python!r}.", "This is not a program.", "give a path to python.")
    if working_dir is not None and not working_dir.startswith("/"):
        raise UsageError(
            f"The working directory is {working_dir!r}.",
            "Hosts have no common place that it could be relative to.",
            "give a path that begins with /.",
        )


def require_choice(
    fact: str, value: object, choices: Collection[str], conflict: str = "There is none of that name."
) -> None:
    """Raise UsageError with this fact and conflict unless the value is one of the choices."""
    if value not in choices:
        raise UsageError(fact, conflict, did_you_mean(str(value), choices))


def require_numbers(numbers: Mapping[str, tuple[float | None, int]]) -> None:
    """Refuse numbers below their minimum, above what is possible, and without an end; option → (value, minimum)."""
    for name, (value, least) in numbers.items():
        most = _MOST.get(name, 2**31 - 1)
        if value is None or least <= value <= most:  # false for nan, too
            continue
        if math.isfinite(value) and value > most:
            raise UsageError(f"{name} is {value}.", f"It must be {most} or less.", "give a smaller number.")
        conflict = f"It must be {least} or more." if math.isfinite(value) else "It must be a number with an end."
        raise UsageError(f"{name} is {value}.", conflict, f"give a number from {least} up.")


def require_room(np: int, min_workers: int | None, max_workers: int | None, hosts: Sequence[Host]) -> None:
    """Refuse a number of workers outside of its own bounds, or for which the hosts have too few slots."""
    low, high = min_workers or np, max_workers or np
    if min_workers and max_workers and low > high:
        raise UsageError(
            f"--min-workers is {low} and --max-workers {high}.", "No number of workers is both.", "swap them."
        )
    if not low <= np <= high:
        wrong, bound = ("--min-workers", low) if low > np else ("--max-workers", high)
        fact = f"The job starts {np} workers, and {wrong} is {bound}."
        raise UsageError(fact, "It would start outside of its own bounds.", f"use -np {bound}, or {wrong} {np}.")
    slots = total_slots(hosts)
    if hosts and np > slots:
        shown = ", ".join(str(host) for host in hosts[:8]) + (", ..." if len(hosts) > 8 else "")
        conflict = f"Its hosts have {slots} slots: {shown}."
        raise UsageError(f"The job has {np} workers.", conflict, f"use -np {slots}, or add hosts or slots.")


def require_names(name: str, variables: Iterable[str], nics: Iterable[str], image: str | None) -> None:
    """Refuse names that end up in command lines and are not valid."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"The job's name is {name[:80]!r}.",
            "It has letters, digits, `.`, `_` and `-`, at most 63, and begins with a letter or digit.",
            "choose another --name.",
        )
    for variable in variables:
        if not _VARIABLE.fullmatch(variable):
            shown = variable.partition("=")[0]  # what follows may be a secret
            raise UsageError(
                f"{shown!r} is to be passed on with a value or is not a variable's name.",
                "Values would stand in command lines that everybody can read.",
                "export the variable, and pass on its name alone.",
            )
    for nic in nics:
        if not NIC.fullmatch(nic):
            raise UsageError(
                f"The network interface is called {nic[:80]!r}.",
                "Interfaces have names such as eth0 or ib0.",
                "`ip -brief address` lists them; separate several by commas.",
            )
    if image is not None and not _IMAGE.fullmatch(image):
        raise UsageError(
            f"The image is called {image[:80]!r}.",
            "This is not the name of a container image.",
            "write it as registry/name:tag.",
        )


def require_gpus_and_cores(slots: int, gpus_per_host: int, cores_per_host: int | None, binding: str) -> None:
    """Refuse hosts with fewer GPUs than workers, and a binding that cannot be."""
    if gpus_per_host and slots > gpus_per_host:
        fact = f"A host runs {slots} workers and has {gpus_per_host} GPUs."
        raise UsageError(fact, "Each worker needs a GPU of its own.", f"use at most {gpus_per_host} slots a host.")
    require_choice(f"The binding is {binding!r}.", binding, BINDINGS)
    if binding != "core":
        return
    if cores_per_host is None:
        raise UsageError(
            "Workers are to be bound to cores.",
            "How many cores a host has is not known.",
            "say it with --cores-per-host, or use --binding none.",
        )
    if cores_per_host < slots:
        fact = f"A host runs {slots} workers and has {cores_per_host} cores."
        raise UsageError(fact, "Two workers would be bound to one core.", "use fewer slots, or --binding none.")

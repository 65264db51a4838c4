"""The arguments of `horovod.run` that `hvdtrain.run` understands, and those that it refuses."""

from collections.abc import Mapping
from typing import Any, Final

from hvdtrain.cli.python_calls.own_job import require_count
from hvdtrain.errors import UsageError

_ELASTIC: Final = (
    "A function has a result of each rank, so their number is fixed.",
    "for workers that come and go, train a hvdtrain.Task by `hvdtrain launch ssh --host-discovery-script`.",
)
_MPI: Final = ("Workers meet by Gloo here.", "leave it out, or call horovod.run, which can use MPI.")

_REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(
        ("min_num_proc", "min_np", "max_num_proc", "max_np", "reset_limit", "cooldown_range", "host_discovery_script"),
        _ELASTIC,
    ),
    "slots": ("It belongs to a script that discovers hosts.", "write the slots behind each host: hosts='a:2,b:2'."),
    "ssh_identity_file": (
        "ssh itself knows which key belongs to a host.",
        "name the key in ~/.ssh/config, by IdentityFile.",
    ),
    "output_filename": (
        "Output goes to this process, with the rank before each line.",
        "let the function write a file of its own for each rank, or redirect this process's output.",
    ),
    "use_mpi": _MPI,
    "mpi_args": _MPI,
}

_UNDERSTOOD: Final = ("use_gloo", "disable_cache", "verbose", "network_interface", "network_interfaces")


def require_understood(given: Mapping[str, Any]) -> None:
    """Raise UsageError for an argument of `horovod.run` that means something that we do not do, and TypeError for one
    that `horovod.run` does not have."""
    for name, value in given.items():
        if name not in _REFUSED and name not in _UNDERSTOOD:
            raise TypeError(f"run() got an unexpected keyword argument {name!r}")
        if value and name in _REFUSED:
            conflict, hint = _REFUSED[name]
            raise UsageError(f"hvdtrain.run() was given {name}={value!r}.", conflict, hint)


def one_of(first: str, second: str, values: Mapping[str, Any]) -> Any:
    """The value of the argument that has two names. Raises UsageError: they differ."""
    given = [values[name] for name in (first, second) if values.get(name) is not None]
    if len(given) == 2 and given[0] != given[1]:
        raise UsageError(
            f"hvdtrain.run() was given {first}={given[0]!r} and {second}={given[1]!r}.",
            "Both mean the same, and they differ.",
            "leave one of them out.",
        )
    return given[0] if given else None


def workers_asked(values: Mapping[str, Any]) -> int | None:
    """The value of `np` or `num_proc`. Raises UsageError: it is no number of workers."""
    count = one_of("np", "num_proc", values)
    return None if count is None else require_count("np", count)


def interfaces(values: Mapping[str, Any]) -> str:
    """The names of network interfaces, separated by commas; "" where none is named."""
    several, one = values.get("network_interfaces"), values.get("network_interface")
    return ",".join([several] if isinstance(several, str) else several) if several else one or ""

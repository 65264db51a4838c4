"""`hvdtrain.run(function, np=N)`: a function on every worker, as `horovod.run` does it, and the results of all."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdtrain.cli.python_calls import horovod_arguments
from hvdtrain.cli.python_calls.job_failure import require_success
from hvdtrain.cli.python_calls.launched_job import JobEnd, run_job
from hvdtrain.cli.python_calls.own_job import require_alone
from hvdtrain.cli.python_calls.private_folder import private_folder
from hvdtrain.cli.python_calls.rank_call import name_of
from hvdtrain.cli.python_calls.rank_results import CALL, read_failure, read_values
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.launch.hosts.host import Host, parse_host_list, total_slots
from hvdtrain.launch.hosts.host_files import read_hostfile
from hvdtrain.launch.job_spec import JobSpec
from hvdtrain.launch.ssh.folder_on_hosts import FOLDER_VARIABLE
from hvdtrain.tasks.by_value import packed
from hvdtrain.topology import detect_topology

_HINT = "give what it needs as arguments that can be pickled, and open files and connections inside of it."


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    np: int | None = None,
    hosts: str | None = None,
    hostfile: str | Path | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    executable: str | None = None,
    shared_folder: str | Path | None = None,
    **others: Any,
) -> list[Any]:
    """Call `func(*args, **kwargs)` on each of `np` workers, and return the results of all ranks in their order.

    The function calls `hvd.init()` itself, of horovod.torch, hvdtrain.torch, hvdtrain.keras and others. It may be a
    lambda, a closure, or defined in a notebook. What workers print appears here. An interrupt is passed on to them.

    Args:
        np, num_proc: the number of workers (default: all slots of the hosts, else 1).
        hosts: "a:2,b:2" starts workers by ssh, as `hvdtrain launch ssh`. None: on this machine.
        hostfile: a file with a host in each line: `a slots=2` or `a:2`.
        start_timeout: seconds until all hosts must answer and all workers must have met.
        executable: the Python of the workers.
        shared_folder: with hosts, a folder that all of them see under this path. The function and the results are
            exchanged there, in a folder that only its owner can open. None: through the connections of ssh.
        others: `use_gloo`, `disable_cache`, `verbose` and `network_interfaces` as in `horovod.run`. Its other arguments
            are refused.

    Raises:
        UsageError: an argument is refused, or the function or a result cannot be pickled.
        HvdtrainError: the function raised an exception, which is the cause of this one, on a rank that is named; the
            note of this error is its traceback. Or a worker died.
        KeyboardInterrupt: it was interrupted.
    """
    horovod_arguments.require_understood(others)
    require_alone(detect_topology(os.environ), "hvdtrain.run()")
    _require_arguments(func, args, kwargs)
    places = _hosts(hosts, hostfile)
    count = horovod_arguments.workers_asked({"np": np, "num_proc": num_proc}) or total_slots(places) or 1
    if places:
        JobSpec(command=("call",), np=count, hosts=places)  # refuses more workers than slots
    content = packed((func, tuple(args), dict(kwargs or {}), start_timeout), f"The function {name_of(func)}", _HINT)
    with private_folder(Path(shared_folder).absolute() if places and shared_folder else None) as folder:
        (folder / CALL).write_bytes(content)
        where = _ssh(places, ssh_port, start_timeout, horovod_arguments.interfaces(others)) if places else ["local"]
        words = [*where, "-np", str(count), "--", "call", str(folder)]
        by_ssh = {FOLDER_VARIABLE: str(folder)} if places and not shared_folder else {}
        end = run_job(words, by_ssh, executable)
        _raise_failure(end, folder, name_of(func), count)
        require_success(end)
        return read_values(folder, count)


def _require_arguments(func: object, args: object, kwargs: object) -> None:
    if not callable(func):
        wrong = f"hvdtrain.run() was given {func!r} as its function."
    elif isinstance(args, str | bytes) or not isinstance(args, Sequence):
        wrong = f"hvdtrain.run() was given args={args!r}."
    elif kwargs is not None and not isinstance(kwargs, Mapping):
        wrong = f"hvdtrain.run() was given kwargs={kwargs!r}."
    else:
        return
    raise UsageError(
        wrong,
        "Each worker calls func(*args, **kwargs).",
        'write for example run(train, args=(0.1,), kwargs={"seed": 1}).',
    )


def _hosts(hosts: str | None, hostfile: str | Path | None) -> tuple[Host, ...]:
    if hosts is not None and hostfile is not None:
        raise UsageError(
            "hvdtrain.run() was given hosts and hostfile.", "Both say where workers run.", "leave one of them out."
        )
    if hostfile is not None:
        return read_hostfile(Path(hostfile))
    return parse_host_list(hosts) if hosts is not None else ()


def _ssh(places: Sequence[Host], port: int | None, start_timeout: float | None, interfaces: str) -> list[str]:
    words = ["ssh", "-H", ",".join(map(str, places))]
    for option, value in (("--ssh-port", port), ("--start-timeout", start_timeout), ("--nic", interfaces or None)):
        if value is not None:
            words += [option, str(value)]
    return words


def _raise_failure(end: JobEnd, folder: Path, name: str, count: int) -> None:
    """Raise what the function raised on the rank that has caused the end of the job; return where it raised nothing."""
    record = end.failure
    failure = read_failure(folder, record.rank) if end.code != 0 and record is not None else None
    if record is None or failure is None or isinstance(failure.error, KeyboardInterrupt):
        return
    where = f"on rank {record.rank} of {count}, on {record.host}"
    if isinstance(failure.error, HvdtrainError):
        error: BaseException = failure.error
        error.add_note(f"Raised by {name}() {where}.")
    else:
        error = HvdtrainError(
            f"{name}() raised an exception {where}: {failure.what.rstrip('.')}.",
            "The other workers were ended, so there are no results.",
            "the traceback of that rank is the note of this error.",
        )
        error.add_note(f"Traceback {where}:\n{failure.traceback}")
        error.__cause__ = failure.error
    raise error

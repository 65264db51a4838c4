"""Open the communicator that fits the topology; refuse to continue if Horovod disagrees with the launcher."""

import atexit
import importlib.util
import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from data_sharding.freed_memory import keep_freed_memory
from hvdtrain.comm import horovod_world
from hvdtrain.comm.communicator import Binding, Communicator, HorovodCommunicator, SerialCommunicator
from hvdtrain.comm.horovod_connections import remembering_connections
from hvdtrain.comm.peer_failure import bounded_start, failed_starts, limit_waits, start_timeout
from hvdtrain.comm.process_sets import (
    allow_process_sets,
    are_process_sets_allowed,
    form_process_sets,
    form_stage_sets,
    require_ranks,
)
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.value_syntax import resolve
from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology, detect_topology

STALL_TIMEOUT: Final = 300.0
"""Seconds that a collective may wait for a rank in a program that says nothing about it."""

_WHOLE: Final = ParallelOptions()
_met: Final[set[str]] = set()  # variables that are in the environment since ranks have met by our rendezvous
_serving: Final = ExitStack()  # rank 0's store, through which ranks of process sets that are added later meet
atexit.register(_serving.close)  # after Horovod's own end, as that is registered later: until then sets may be formed
_STALL_VARIABLE: Final = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
_INSTALL = "run `python -m hvdtrain.horovod_wheel install`, which builds Horovod for the frameworks that are installed."


def open_communicator(
    framework: str,
    topology: Topology,
    stall_timeout: float = STALL_TIMEOUT,
    process_sets: str | None = None,
    parallel: ParallelOptions = _WHOLE,
    meanwhile: Callable[[], object] = lambda: None,
) -> Communicator:
    """Join the other ranks.

    Args:
        framework: "torch" or "tensorflow": whose Horovod binding to use.
        topology: what the launcher's variables say; one rank needs no Horovod at all.
        stall_timeout: seconds after which a collective that some ranks never joined ends the job; a frozen rank takes
            longer, see `StallDeadline`.
        process_sets: as --process-sets; `own_process_set` finds them.
        parallel: for whose stages sets are formed, too; `process_set_of` finds them.
        meanwhile: called when Horovod has been imported, before other ranks are waited for; not for one rank.

    Raises:
        UsageError: Horovod is missing, was not built for `framework`, or sees another world than the launcher; or
            `process_sets` are not of this world.
        PeerError: this rank could not connect to another one over Gloo.
        HvdtrainError: the ranks of a launcher that does not connect them did not find each other in time.
    """
    keep_freed_memory()
    if not topology.is_distributed:
        if process_sets is not None:
            resolve(process_sets, [0])
        return SerialCommunicator(topology)
    require_horovod(framework)
    horovod_world.set_defaults(os.environ, stall_timeout)
    if process_sets is not None or parallel.is_pipeline:
        allow_process_sets(os.environ)
    binding = load_binding(framework)
    meanwhile()

    def form(comm: Communicator) -> None:
        if process_sets is not None:
            form_process_sets(comm, binding.hvd, process_sets)
        form_stage_sets(comm, binding.hvd, parallel)

    return join_world(binding, topology, stall_timeout, binding.hvd.init, form)


def join_world(
    binding: Binding,
    topology: Topology,
    stall_timeout: float,
    start: Callable[[], object],
    form: Callable[[Communicator], object] = lambda _comm: None,
    with_sets: bool = False,
    store_lasts: ExitStack | None = None,
) -> HorovodCommunicator:
    """Start Horovod, whose ranks meet through our rendezvous where the launcher does not connect them.

    Args:
        topology: what the launcher's variables say.
        start: `hvd.init`, which may get arguments.
        form: makes what all ranks have to make together right after the start.
        with_sets: whether `start` is given process sets.
        store_lasts: ends the store of such a rendezvous; None: it ends when all ranks are initialized.

    Raises:
        UsageError: Horovod sees another world than the launcher.
        PeerError: this rank could not connect to another one over Gloo.
        HvdtrainError: the ranks did not find each other in time.
    """
    with ExitStack() as rendezvous:
        if are_apart := topology.is_distributed and horovod_world.starts_processes_only(topology, os.environ):
            from hvdtrain.comm.rendezvous.connect import connected_ranks

            before = set(os.environ)
            rendezvous.enter_context(connected_ranks(topology, os.environ, store_lasts))
            _met.update(set(os.environ) - before)
        with bounded_start(topology, os.environ), remembering_connections(), failed_starts(with_sets):
            start()
        comm = HorovodCommunicator(binding, horovod_world.confirmed(topology, binding.hvd))
        limit_waits(topology.rank, stall_timeout)
        form(comm)
        if are_apart:
            comm.barrier("hvdtrain.rendezvous")  # rank 0 serves until all are initialized
    return comm


def join_as_script(framework: str, start: Callable[[], object], process_sets: Any = None) -> Topology:
    """Start Horovod in a program with a training loop of its own: `hvd.init()` of our look-alikes of Horovod's modules.

    The environment may set the stall limit (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS); otherwise it is 300 seconds, where
    Horovod has none. Does nothing where Horovod runs already.

    Args:
        framework: "torch" or "tensorflow".
        start: Horovod's `init`.
        process_sets: what it is given as such.

    Returns: where this process is in the world.

    Raises: as `join_world`; and `UsageError` if this process has ended MPI, or `process_sets` are not of this world.
    """
    require_horovod(framework)
    keep_freed_memory()
    binding = load_binding(framework)
    if horovod_world.is_elastic(os.environ):
        return _join_elastic(binding, start, process_sets is not None)
    if binding.hvd.is_initialized():
        return horovod_world.confirmed(detect_topology(os.environ), binding.hvd)
    horovod_world.require_mpi(binding.hvd)
    _serving.close()
    while _met:  # a second world: its ranks meet again, and may do so elsewhere
        os.environ.pop(_met.pop(), None)
    topology, limit = detect_topology(os.environ), stall_limit_of_script()
    require_ranks(process_sets, topology.size)
    store_lasts = _serving if are_process_sets_allowed(process_sets, os.environ) else None
    with_sets = process_sets is not None
    return join_world(binding, topology, limit, start, with_sets=with_sets, store_lasts=store_lasts).topology


def join_part_as_script(framework: str, start: Callable[[], object]) -> None:
    """As `join_as_script`, in a part of the launcher's world, of which the launcher's variables say nothing."""
    limit = stall_limit_of_script()
    start()
    limit_waits(load_binding(framework).hvd.rank(), limit)


def require_joined(hvd: Any, wanted: str) -> None:
    """Raise `UsageError` if `hvd.init()` was not called.

    Args:
        hvd: Horovod's module.
        wanted: what the program called instead.
    """
    if not hvd.is_initialized():
        raise UsageError(
            f"{wanted} was used before hvd.init().",
            "Without it no rank knows of the others.",
            "call hvd.init() as the first statement after the imports.",
        )


def _join_elastic(binding: Binding, start: Callable[[], object], with_sets: bool) -> Topology:
    """Under Horovod's elastic driver, which tells each world to Horovod: the variables are those of the first one.

    Workers leave their world as soon as another host is there, and wait for its worker as long as at a start: it may
    still import, and Gloo's own limit of 30 s would end them all.
    """
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(int(start_timeout(os.environ))))
    limit, hvd = stall_limit_of_script(), binding.hvd
    with failed_starts(with_sets):
        start()
    limit_waits(hvd.rank(), limit)
    return Topology(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())


def stall_limit_of_script() -> float:
    """In seconds; infinite for 0, which is Horovod's word for it. Raises `UsageError`: what the environment says is not
    a number of seconds."""
    # Small messages that are ready together travel as one; larger buckets of gradients are not copied for that.
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", str(2**20))
    text = os.environ.get(_STALL_VARIABLE, str(int(STALL_TIMEOUT)))
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"{_STALL_VARIABLE} is {text!r}.", "It is a number of whole seconds, or 0 for no limit.", "try 300."
        )
    horovod_world.set_defaults(os.environ, float(text) or STALL_TIMEOUT)
    return float(text) or math.inf


def form_stages(framework: str, comm: Communicator, parallel: ParallelOptions) -> None:
    """Form the process sets of these stages, after a start for other ones. Collective."""
    if comm.topology.is_distributed:
        form_stage_sets(comm, load_binding(framework).hvd, parallel)


def leave_world(framework: str) -> None:
    """End Horovod after a collective has failed, or was ended with all others: `open_communicator` may follow."""
    if framework in ("torch", "tensorflow") and importlib.util.find_spec("horovod") is not None:
        load_binding(framework).hvd.shutdown()


def load_binding(framework: str) -> Binding:
    """Import Horovod's module for `framework` ("torch" or "tensorflow") and with it that framework."""
    if framework == "torch":
        from hvdtrain.comm.torch_binding import TorchBinding

        return TorchBinding()
    from hvdtrain.comm.tensorflow_binding import TensorFlowBinding

    return TensorFlowBinding()


def measured_allreduce(framework: str) -> Any:
    """The framework's `hvdtrain.doctor.allreduce_times.Prepared`."""
    if framework == "torch":
        from hvdtrain.comm.torch_binding import TorchAllreduce

        return TorchAllreduce()
    from hvdtrain.comm.tensorflow_binding import TensorFlowAllreduce

    return TensorFlowAllreduce()


def require_horovod(framework: str) -> None:
    """Raise `UsageError` unless Horovod is installed and was built for `framework`. Imports nothing."""
    spec = importlib.util.find_spec("horovod")
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            "Horovod is not installed.", "More than one process cannot train together without it.", _INSTALL
        )
    folder = Path(spec.submodule_search_locations[0]) / framework
    if not any(folder.glob("mpi_lib*.so")):
        raise UsageError(
            f"The installed Horovod was not built for {framework}.",
            "Its processes could not exchange gradients.",
            _INSTALL if importlib.util.find_spec(framework) else f"install {framework}, then {_INSTALL}",
        )

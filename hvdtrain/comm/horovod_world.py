"""Horovod's world: its settings, and the check that it agrees with the launcher."""

import ctypes
import os
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final

from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology

_FABRICS: Final = ("infiniband", "cxi")  # Linux's classes of devices: InfiniBand, RoCE, EFA and Omni-Path; Slingshot

_RING_RULES: Final = Path(__file__).with_name("ring_rules.conf")

_TIMELINE: Final = "HOROVOD_TIMELINE"

_STARTERS = "`hvdtrain launch`, horovodrun, or the mpirun of the MPI that Horovod was built with"


def starts_processes_only(topology: Topology, environ: Mapping[str, str]) -> bool:
    """Whether the launcher does not connect the processes; then `comm.rendezvous.connect` does it."""
    return topology.launcher in ("torchrun", "slurm") and environ.get("HOROVOD_CONTROLLER", "gloo") == "gloo"


def is_elastic(environ: Mapping[str, str]) -> bool:
    """Whether Horovod's elastic driver has started this process: the number of ranks may change, also from and to 1."""
    return environ.get("HOROVOD_ELASTIC") == "1"


def confirmed(topology: Topology, hvd: Any) -> Topology:
    """`topology`, confirmed by Horovod, which has been initialized. Raises UsageError: Horovod sees another world than
    the launcher's variables say."""
    if hvd.size() == 1 and topology.is_distributed:
        raise UsageError(
            f"{topology.launcher} started {topology.size} processes ({topology.source['size']}), but Horovod sees one.",
            "Each process would train alone on all of the data.",
            f"start it with {_STARTERS}: another MPI's mpirun does not connect them.",
        )
    disagreement = topology.disagreement(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
    if disagreement:
        raise UsageError(
            f"The launcher's variables and Horovod disagree: {disagreement}.",
            "Data would be split for another world than the one that trains.",
            "run `hvdtrain env --explain` under the same launcher to see which variable decided what.",
        )
    return topology.completed(hvd.local_rank(), hvd.local_size())


def require_mpi(hvd: Any) -> None:
    """Raise `UsageError` if this process has ended MPI: `hvd.init()` would end the job with MPI's own message."""
    has_ended = ctypes.c_int()
    if hvd.mpi_built():  # the functions of MPI's library are found through Horovod's, which loads it
        hvd.mpi_built.__self__.MPI_LIB_CTYPES.MPI_Finalized(ctypes.byref(has_ended))
    if has_ended:
        raise UsageError(
            "hvd.init() is called again, after hvd.shutdown() in a job over MPI.",
            "hvd.shutdown() ended MPI, and a process can start MPI only once.",
            "write `from mpi4py import MPI` before the first hvd.init(): then MPI ends with the process. Or start the "
            "job over Gloo (`horovodrun --gloo`).",
        )


def set_defaults(environ: MutableMapping[str, str], stall_timeout: float) -> None:
    """Choose, before `hvd.init()`, what the environment leaves open of Horovod and Open MPI."""
    # Horovod ends the job when a collective stalls for `stall_timeout` seconds; by default it only warns.
    environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", str(max(1, int(min(60, stall_timeout / 2)))))
    environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str(max(2, int(stall_timeout))))
    # Open MPI's waiting threads give way to ranks that compute; by default they spin. Read by MPI_Init. Eight ranks on
    # two cores train the digits at 120 samples/s when they spin, and at 1,700 when they yield.
    environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    # Horovod exchanges a tensor as soon as it is ready, not when its cycle of 1 ms is over, and has long cycles while
    # there is none. A variable of our patches to Horovod, on with any value; read by hvd.init().
    environ.setdefault("HOROVOD_CYCLE_WAKE", "1")
    # Gradients are flat buckets that Horovod reduces in place. It would copy those that are ready together into a
    # buffer of its own and back. Read by hvd.init().
    environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")
    # Where no RDMA device is, Open MPI does not look for one: its `ofi` module then sleeps a second
    # (`mca_btl_ofi_component_close` of Open MPI 5.0). Read by MPI_Init.
    if not any(True for kind in _FABRICS for _ in Path("/sys/class", kind).glob("*")):
        environ.setdefault("OMPI_MCA_btl", "^ofi")
    _prefer_ring_between_hosts(environ)


def _prefer_ring_between_hosts(environ: MutableMapping[str, str]) -> None:
    """Let Open MPI add large messages by a ring where they cross hosts, unless the user has set its `tuned` module.

    By default it has other ways: for 4 hosts and 4 MiB one that takes up to twice as long as a ring on slow links (see
    docs/experiments.md). All ranks must decide alike: on each, the job is larger than its host's part of it.
    """
    size, local_size = (environ.get(f"OMPI_COMM_WORLD_{name}", "") for name in ("SIZE", "LOCAL_SIZE"))
    if size != local_size and not any(name.startswith("OMPI_MCA_coll_tuned_") for name in environ):
        environ["OMPI_MCA_coll_tuned_use_dynamic_rules"] = "1"
        environ["OMPI_MCA_coll_tuned_dynamic_rules_filename"] = str(_RING_RULES)


def sum_in_order(environ: MutableMapping[str, str]) -> None:
    """Keep Horovod from fusing what happens to be ready into one message: where a ring cuts it decides in which order
    three or more ranks' values are added, and so their last bits."""
    environ["HOROVOD_FUSION_THRESHOLD"] = "0"


def fuse_gradients(environ: MutableMapping[str, str]) -> None:
    """Let Horovod put messages that are ready together into one, up to its usual size."""
    environ.setdefault("HOROVOD_FUSION_THRESHOLD", str(128 * 2**20))


# Which node this is, where the launcher says so: emulated nodes of one machine share its host name. A node's number
# does not serve: HOROVOD_CROSS_RANK counts only the nodes with as many workers, and Open MPI states none.
NODE_NAMES = ("SLURMD_NODENAME", "SM_CURRENT_HOST")


def node_name(environ: Mapping[str, str] = os.environ, names: Sequence[str] = ("HOROVOD_HOSTNAME", *NODE_NAMES)) -> str:
    """Of the machine on which this process runs, for people and for comparing."""
    return next(filter(None, map(environ.get, names)), socket.gethostname())


def allow_timeline(environ: MutableMapping[str, str]) -> None:
    """Let `comm.timeline` begin to record after Horovod's start. On all ranks, or their messages differ in length.
    Raises UsageError: Horovod is to record a timeline of its own, which would end there."""
    if environ.setdefault(_TIMELINE, "DYNAMIC") != "DYNAMIC":
        raise UsageError(
            f"{_TIMELINE} is {environ[_TIMELINE]}, and --trace is given.",
            "Horovod records one timeline at a time.",
            "leave out one of them; --trace contains Horovod's timeline of its updates.",
        )

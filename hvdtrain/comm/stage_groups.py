"""What pipelines need of Horovod and MPI: process sets, and a communicator for messages from stage to stage.

Both are made at the start, by all ranks together: work that one rank may refuse must not contain collectives.
"""

import importlib.util
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hvdtrain.comm.communicator import Communicator
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.errors import UsageError
from hvdtrain.topology.grid import Grid

_worlds: list[Any] = []  # MPI's communicator of all ranks for these messages, where MPI can carry them


def form_stage_sets(comm: Communicator, hvd: Any, options: ParallelOptions) -> None:
    """Form the sets of the ranks with the same stage, and where MPI does not carry activations, of each two ranks with
    consecutive stages. Sets that are there already are left alone. Collective.

    Nothing is formed where the number of stages does not divide that of the ranks, which `run.prepare` refuses.

    Args:
        comm: all ranks.
        hvd: Horovod's module, initialized after `allow_process_sets`.
        options: how the model is divided.

    Raises:
        UsageError: on all ranks; MPI is to carry activations, and cannot.
    """
    size, stages = comm.topology.size, options.stages_of_workers
    if stages == 1 or size % stages:
        return
    _open_world(comm, hvd)
    if options.transport == "mpi" and not _worlds:
        raise UsageError(
            "--parallel.transport is mpi, and MPI cannot carry activations here.",
            "Horovod must use MPI with support for threads, and mpi4py the same MPI, on all hosts.",
            "start the job with mpirun or horovodrun --mpi, and install mpi4py, or leave --parallel.transport out.",
        ).on_all_ranks()
    sets = (
        [list(range(stage, size, stages)) for stage in range(stages)]
        if Grid(comm.topology, stages).replicas > 1
        else []
    )
    if not mpi_world(options):
        sets += [[rank, rank + 1] for rank in range(size - 1) if (rank + 1) % stages]
    form_sets(hvd, sets)


def form_sets(hvd: Any, sets: Iterable[Sequence[int]]) -> None:
    """Form these sets of ranks, except those that are there. Collective.

    Args:
        hvd: Horovod's module, initialized after `allow_process_sets`.
    """
    known = list(_known_sets().values())
    for ranks in sets:
        if list(ranks) not in known:
            hvd.add_process_set(list(ranks))


def mpi_world(options: ParallelOptions) -> Any:
    """The communicator that carries activations; None: process sets do."""
    return _worlds[0] if _worlds and options.transport != "horovod" else None


def process_set_of(ranks: Sequence[int]) -> Any:
    """Horovod's set of exactly these ranks, which has been formed.

    Raises:
        RuntimeError: it has not.
    """
    from horovod.common import process_sets

    for number, members in _known_sets().items():
        if members == list(ranks):
            found = process_sets.ProcessSet(members)
            found.process_set_id = number
            return found
    raise RuntimeError(f"no process set of the ranks {list(ranks)} was formed at the start")


def _known_sets() -> dict[int, list[int]]:
    from horovod.common import process_sets

    known: dict[int, list[int]] = process_sets._basics._get_process_set_ids_and_ranks()
    return known


def _open_world(comm: Communicator, hvd: Any) -> None:
    """If all ranks can. Once for a process: MPI's ranks stay."""
    if _worlds:
        return
    usable = np.array([int(_is_usable(comm, hvd))])
    if comm.allreduce(usable, "hvdtrain.pipeline.mpi", "min")[0]:
        from mpi4py import MPI

        _worlds.append(MPI.COMM_WORLD.Dup())  # so that no message is mistaken for one of Horovod's


def _is_usable(comm: Communicator, hvd: Any) -> bool:
    """Whether mpi4py is there, and speaks the MPI that Horovod uses, with threads."""
    if not (hvd.mpi_enabled() and hvd.mpi_threads_supported()) or importlib.util.find_spec("mpi4py") is None:
        return False
    from mpi4py import MPI

    own = MPI.COMM_WORLD
    return (own.Get_rank(), own.Get_size()) == (comm.topology.rank, comm.topology.size)

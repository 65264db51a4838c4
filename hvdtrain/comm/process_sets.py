"""Process sets of Horovod, and MPI's communicator for messages from stage to stage.

Both are made right after Horovod's start, by all ranks together: under Gloo the ranks of a set meet through the same
store as all ranks did, which may be gone later, and work that one rank may refuse must not contain collectives. `hvd`
is Horovod's module, initialized after `allow_process_sets`, and `comm` has all ranks.
"""

import importlib.util
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final

import numpy as np

from hvdtrain.comm.communicator import Communicator
from hvdtrain.comm.horovod_world import node_name
from hvdtrain.comm.messages import gather_json
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.value_syntax import NODE, resolve
from hvdtrain.errors import UsageError

_ALLOWING: Final = "HOROVOD_DYNAMIC_PROCESS_SETS"
_worlds: list[Any] = []  # MPI's communicator of all ranks for these messages, where MPI can carry them


class FixedProcessSetsError(UsageError, ValueError):
    """A process set was to be added to those of Horovod's start. Horovod raises a ValueError."""


def allow_process_sets(environ: MutableMapping[str, str]) -> None:
    """Let Horovod form sets after its start, when ranks can tell each other their nodes."""
    environ[_ALLOWING] = "1"


def are_process_sets_allowed(process_sets: Any, environ: Mapping[str, str]) -> bool:
    """Whether Horovod forms sets after a start to which these `process_sets` are given."""
    number = environ.get(_ALLOWING, "").strip()
    return str(process_sets).lower() == "dynamic" or (number.isdigit() and int(number) > 0)


def form_process_sets(comm: Communicator, hvd: Any, text: str) -> None:
    """Form the sets of --process-sets, whose value is `text` (see `hvdtrain.config.value_syntax`). Collective. Raises
    UsageError: on every rank: the sets are none of these workers', or ranks ask for different ones."""
    answers = gather_json(comm, [text, node_name(), comm.topology.local_size], "hvdtrain.process_sets")
    other = next((rank for rank, (theirs, _, _) in enumerate(answers) if theirs != answers[0][0]), None)
    if other is not None:
        raise UsageError(
            f"Rank {other} has --process-sets {answers[other][0]}, and rank 0 {answers[0][0]}.",
            "They would wait for each other in different sets.",
            "start all workers with the same options.",
        ).on_all_ranks()
    try:
        sets = resolve(text, [node for _, node, _ in answers])
        if text == NODE:
            _require_whole_nodes(sets, [(node, local_size) for _, node, local_size in answers])
    except UsageError as error:
        raise error.on_all_ranks() from None
    for ranks in sets:
        if len(ranks) < comm.topology.size:  # Horovod has the set of all ranks anyway
            hvd.add_process_set(list(ranks))


def _require_whole_nodes(sets: Sequence[Sequence[int]], places: Sequence[tuple[str, int]]) -> None:
    for ranks in sets:
        node, local_size = places[ranks[0]]
        if any(places[rank][1] != len(ranks) for rank in ranks):
            raise UsageError(
                f"{len(ranks)} workers say that they run on {node}, and one of them that {local_size} do.",
                "With --process-sets node each node's workers exchange gradients, and nodes are told apart by name.",
                "write the ranks of each set instead, as 0-3,4-7.",
            )


def add_process_set(hvd: Any, process_set: Any) -> Any:
    """Form one more set: `hvd.add_process_set`, which aborts all ranks where one of the set is not there, or is in it
    twice. Collective. It needs HOROVOD_DYNAMIC_PROCESS_SETS=1 or `init(process_sets="dynamic")`.

    Args:
        process_set: ranks, or a `ProcessSet` of Horovod's.

    Returns: the `ProcessSet`, with its number.

    Raises:
        UsageError: these are not ranks of this world.
        FixedProcessSetsError: Horovod was started with fixed sets.
    """
    wanted = process_set if isinstance(process_set, hvd.ProcessSet) else hvd.ProcessSet(process_set)
    require_ranks([wanted], hvd.size())
    try:
        return hvd.add_process_set(wanted)
    except ValueError as error:
        if _ALLOWING not in str(error):
            raise
    raise FixedProcessSetsError(
        f"The process set of the ranks {wanted.ranks} was to be added, and Horovod was started with fixed sets.",
        "Ranks ask each other for new sets only where that was wished, as it makes each collective slower.",
        f'set {_ALLOWING}=1 in the environment before the start, or call hvd.init(process_sets="dynamic").',
    )


def formed_set(ranks: Sequence[int]) -> Any:
    """A new `ProcessSet` that stands for the set of exactly these ranks, or None: there is none yet."""
    number = next((number for number, members in _known_sets().items() if members == list(ranks)), None)
    return None if number is None else _process_set(number)


def require_ranks(process_sets: Any, size: int) -> None:
    """Raise `UsageError` unless each set has ranks of a world of `size`, and each of them once.

    Args: `process_sets`: a list of Horovod's `ProcessSet`s, or what else its `init` takes.
    """
    sets = process_sets if isinstance(process_sets, list | tuple) else ()
    for ranks in [each.ranks for each in sets if each.ranks is not None]:
        outside = [rank for rank in ranks if not 0 <= rank < size]
        if outside or not ranks or len(set(ranks)) < len(ranks):
            raise UsageError(
                f"A process set was to have the ranks {ranks}.",
                f"It must have at least one rank, and each once, of the {size} that there are, from 0 on.",
                "leave out what is no rank, and what is there twice.",
            )


def form_stage_sets(comm: Communicator, hvd: Any, options: ParallelOptions) -> None:
    """Form the sets of the ranks with the same stage, and where MPI does not carry activations, of each two ranks with
    consecutive stages. Collective.

    Nothing is formed where the number of stages does not divide that of the ranks, which `run.prepare` refuses. Raises
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
    sets = [list(range(stage, size, stages)) for stage in range(stages)] if size > stages else []
    if not mpi_world(options):
        sets += [[rank, rank + 1] for rank in range(size - 1) if (rank + 1) % stages]
    form_sets(hvd, sets)


def form_sets(hvd: Any, sets: Iterable[Sequence[int]]) -> None:
    """Form these sets of ranks, except those that are there. Collective."""
    known = list(_known_sets().values())
    for ranks in sets:
        if list(ranks) not in known:
            hvd.add_process_set(list(ranks))


def mpi_world(options: ParallelOptions) -> Any:
    """The communicator that carries activations; None: process sets do."""
    return _worlds[0] if _worlds and options.transport != "horovod" else None


def own_process_set() -> Any:
    """Horovod's set that this rank is in, as `form_process_sets` left it; that of all ranks where it formed none."""
    from horovod.common import process_sets

    rank = process_sets._basics.rank()
    return _process_set(next((number for number, ranks in _known_sets().items() if number and rank in ranks), 0))


def process_set_of(ranks: Sequence[int]) -> Any:
    """Horovod's set of exactly these ranks, which has been formed. Raises RuntimeError: it has not."""
    found = formed_set(ranks)
    if found is None:
        raise RuntimeError(f"no process set of the ranks {list(ranks)} was formed at the start")
    return found


def _process_set(number: int) -> Any:
    from horovod.common import process_sets

    process_set = process_sets.ProcessSet(_known_sets()[number])
    process_set.process_set_id = number
    return process_set


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

    world = MPI.COMM_WORLD
    return (world.Get_rank(), world.Get_size()) == (comm.topology.rank, comm.topology.size)

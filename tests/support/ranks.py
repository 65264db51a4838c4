"""Several ranks: processes under a real launcher, or threads whose communicator has real barriers with a deadline."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, final

import numpy as np

from hvdtrain.comm.communicator import Array, Reduction
from hvdtrain.errors import PeerError
from hvdtrain.topology import Topology, detect_topology
from support.processes import Finished, run_command
from support.warm.interpreters import Interpreter

T = TypeVar("T")
Launcher = Literal["horovodrun-gloo", "horovodrun", "mpirun"]

_DEADLINE_SECONDS = 60.0
HOROVODRUN = [sys.executable, str(Path(__file__).parent / "scripts" / "horovodrun.py")]


def run_ranks(
    command: Sequence[str],
    np: int,
    launcher: Launcher,
    deadline_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    interpreter: Interpreter = "warm",
) -> Finished:
    """Run `command` (without the launcher) on `np` ranks of this machine; other arguments, errors as `run_command`.

    Args:
        launcher: "horovodrun" lets Horovod choose between MPI and Gloo.
    """
    return run_command([*launcher_argv(launcher, np), *command], deadline_s, env, cwd, interpreter)


def launcher_argv(launcher: Launcher, np: int) -> list[str]:
    """The words before a command of the ranks."""
    if launcher == "mpirun":
        flags = ["--oversubscribe", "--bind-to", "none", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
        return [str(Path(sys.executable).with_name("mpirun")), *flags, "-np", str(np)]
    controller = ["--gloo"] if launcher == "horovodrun-gloo" else []
    return [*HOROVODRUN, *controller, "-np", str(np)]


def topology_of(rank: int, size: int) -> Topology:
    """A worker of a world on one machine, as its launcher would describe it."""
    facts = {"RANK": rank, "SIZE": size, "LOCAL_RANK": rank, "LOCAL_SIZE": size, "CROSS_RANK": 0, "CROSS_SIZE": 1}
    return detect_topology({f"HOROVOD_{name}": str(value) for name, value in facts.items()})


class World:
    """What the ranks' communicators share: a slot for each rank, and a barrier that ends when a rank has."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.slots: list[tuple[str, Any]] = [("", None)] * size
        self._changed = threading.Condition()
        self._arrived = self._generation = 0
        self._broken = False

    def meet(self) -> None:
        """Returns when every rank has come here."""
        with self._changed:
            generation = self._generation
            self._arrived += 1
            if self._arrived == self.size:
                self._arrived, self._generation = 0, generation + 1
                self._changed.notify_all()
            met = self._changed.wait_for(lambda: self._generation > generation or self._broken, _DEADLINE_SECONDS)
            if not met:
                raise TimeoutError("a rank did not come to a collective")
            if self._generation == generation:
                raise PeerError("A collective was aborted.", "Another rank has ended.", "see there.")

    def leave(self) -> None:
        """End the collectives that wait for this rank."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()


@final
class ThreadCommunicator:
    """Implements `Communicator`; refuses, as Horovod does, ranks that run different operations."""

    def __init__(self, world: World, rank: int) -> None:
        self.topology = topology_of(rank, world.size)
        self._world, self._rank = world, rank
        self.names: list[str] = []

    def allreduce(self, array: Array, name: str, op: Reduction = "sum") -> Array:
        parts = self._gradient_sync(f"allreduce {op} {name} {array.dtype} {array.shape}", array)
        operation: Any = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op]
        reduced: Array = operation.reduce(parts, axis=0, dtype=array.dtype)
        return reduced

    def start_allreduce(self, array: Array, name: str, op: Reduction = "sum") -> Callable[[], Array]:
        return self.allreduce(array, name, op).copy

    def allgather(self, array: Array, name: str) -> Array:
        return np.concatenate(self._gradient_sync(f"allgather {name} {array.dtype} {array.shape[1:]}", array))

    def broadcast(self, array: Array, name: str, root: int = 0) -> Array:
        array_of_root: Array = self._gradient_sync(f"broadcast {root} {name} {array.dtype} {array.shape}", array)[root]
        return array_of_root

    def barrier(self, name: str) -> None:
        self._gradient_sync(f"barrier {name}", np.zeros(1))

    def close(self) -> None:
        self.barrier("close")

    def _gradient_sync(self, operation: str, array: Array) -> list[Array]:
        self.names.append(operation)
        self._world.slots[self._rank] = (operation, array.copy())
        self._world.meet()
        slots = list(self._world.slots)
        self._world.meet()  # nobody overwrites a slot before all have read it
        if any(other != operation for other, _ in slots):
            raise AssertionError(f"ranks run different operations: {[other for other, _ in slots]}")
        return [value for _, value in slots]


def run_on_ranks(size: int, work: Callable[[ThreadCommunicator], T]) -> list[T | BaseException]:
    """What `work` returned or raised on each rank. A rank that fails ends the others' collectives.

    Raises:
        TimeoutError: a rank did not end within the deadline.
    """
    world = World(size)
    results: list[Any] = [None] * size

    def rank_main(rank: int) -> None:
        try:
            results[rank] = work(ThreadCommunicator(world, rank))
        except BaseException as error:  # handed to the caller, whatever it is
            results[rank] = error
        finally:
            world.leave()

    threads = [threading.Thread(target=rank_main, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * _DEADLINE_SECONDS)
        if thread.is_alive():
            raise TimeoutError(f"a rank of {size} did not end")
    return results


def all_well(results: list[T | BaseException]) -> list[T]:
    """The ranks' results; raises what the first failing rank raised."""
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in sorted(errors, key=lambda e: isinstance(e, PeerError)):
        raise error
    return results  # type: ignore[return-value]

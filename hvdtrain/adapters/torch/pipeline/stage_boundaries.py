"""How activations and their gradients get from one stage to the next, and back.

Between two ranks a message is one array of bytes, which says itself what tensor it is: by MPI, point to point, or
by an allgather in a process set of the two, to which the receiver contributes nothing.
"""

import statistics
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch

from hvdtrain import activity
from hvdtrain.comm.peer_failure import waits_for_peers
from hvdtrain.comm.process_sets import mpi_world, process_set_of
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.topology import Topology
from hvdtrain.topology.topology import Grid


class Link(Protocol):
    """One end of the connection of two stages. What one end sends, the other one receives in the same order."""

    def send(self, tensor: torch.Tensor) -> None:
        """Does not wait for the receiver."""

    def receive(self) -> torch.Tensor:
        """Waits for the next tensor, which is on this stage's device."""

    def flush(self) -> None:
        """Waits until all that was sent has been taken: before this end is given up, whose memory that is."""


class LocalLink:
    def __init__(self, device: torch.device, sent: deque[torch.Tensor], received: deque[torch.Tensor]) -> None:
        self._device, self._sent, self._received = device, sent, received

    @classmethod
    def pair(cls, first: torch.device, second: torch.device) -> tuple["LocalLink", "LocalLink"]:
        """Both ends, of the stages on these devices."""
        forward, back = deque[torch.Tensor](), deque[torch.Tensor]()
        return cls(first, forward, back), cls(second, back, forward)

    def send(self, tensor: torch.Tensor) -> None:
        self._sent.append(tensor)

    def receive(self) -> torch.Tensor:
        return self._received.popleft().to(self._device, non_blocking=self._device.type == "cuda")

    def flush(self) -> None:
        """Nothing is under way."""


_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_MOST_DIMENSIONS: Final = 7
_HEADER: Final = 2 + 2 * _MOST_DIMENSIONS  # int64: the place in _DTYPES, dimensions, their order in memory, the shape
_HEADER_BYTES: Final = 8 * _HEADER


def to_message(tensor: torch.Tensor) -> torch.Tensor:
    """uint8 [n] in host memory: a header, then the tensor's bytes as they are in memory (channels last, say).

    Raises `UsageError`: no gradient could come back for such a tensor.
    """
    if tensor.dtype not in _DTYPES:
        raise UsageError(
            f"A stage of the model ends with a tensor of {tensor.dtype}.",
            "The next stage sends gradients back, which need floating-point numbers.",
            "cut it elsewhere (--parallel.cuts).",
        )
    order = sorted(range(tensor.ndim), key=lambda dimension: -tensor.stride()[dimension])
    laid_out = tensor.permute(order)
    header = np.zeros(_HEADER, np.int64)
    header[:2] = _DTYPES.index(tensor.dtype), tensor.ndim
    header[2 : 2 + tensor.ndim] = order
    header[2 + _MOST_DIMENSIONS :][: tensor.ndim] = laid_out.shape
    message = torch.empty(_HEADER_BYTES + tensor.numel() * tensor.element_size(), dtype=torch.uint8)
    message[:_HEADER_BYTES] = torch.from_numpy(header.view(np.uint8))
    message[_HEADER_BYTES:].view(tensor.dtype).view(laid_out.shape).copy_(laid_out)
    return message


def from_message(message: torch.Tensor) -> torch.Tensor:
    """The tensor in the message's own memory."""
    kind, dimensions, *rest = message[:_HEADER_BYTES].view(torch.int64).tolist()
    order, shape = rest[:dimensions], rest[_MOST_DIMENSIONS:][:dimensions]
    laid_out = message[_HEADER_BYTES:].view(_DTYPES[kind]).view(shape)
    return laid_out.permute([order.index(dimension) for dimension in range(dimensions)])


class Neighbours:
    """What both kinds of links between ranks have in common."""

    def __init__(self, rank: int, other: int, device: torch.device) -> None:
        self._own, self._other, self._device = rank, other, device
        self._name = f"{'activations' if other < rank else 'gradients'} of rank {other}"


class MpiLink(Neighbours):
    """Sends and receives by mpi4py.

    Args:
        world: MPI's communicator of all ranks, of its own for these messages.
        limit: seconds that this rank waits for a message.
    """

    def __init__(self, world: Any, rank: int, other: int, device: torch.device, limit: float) -> None:
        super().__init__(rank, other, device)
        self._world, self._limit = world, limit
        self._sent: deque[tuple[Any, torch.Tensor]] = deque()  # messages, until they have arrived

    def send(self, tensor: torch.Tensor) -> None:
        while self._sent and self._sent[0][0].Test():
            self._sent.popleft()
        message = to_message(tensor)
        self._sent.append((self._world.Isend(_buffer(message), dest=self._other), message))

    def receive(self) -> torch.Tensor:
        from mpi4py import MPI

        with waits_for_peers(name=self._name):
            arrived, status = self._awaited(MPI.Status())
        message = torch.empty(status.Get_count(MPI.BYTE), dtype=torch.uint8)
        arrived.Recv(_buffer(message))
        return from_message(message).to(self._device)

    def flush(self) -> None:
        with waits_for_peers(name=f"rank {self._other} to take what was sent"):
            while self._sent:
                self._sent[0][0].Wait()
                self._sent.popleft()

    def _awaited(self, status: Any) -> tuple[Any, Any]:
        """The next message and its status. Looks for it again and again, and soon with pauses: others may compute."""
        began = time.monotonic()
        while (message := self._world.Improbe(source=self._other, status=status)) is None:
            waited = time.monotonic() - began
            if waited > self._limit:
                raise self._too_late()
            time.sleep(0 if waited < _SPINS_S else _PAUSE_S)
        return message, status

    def _too_late(self) -> HvdtrainError:
        return HvdtrainError(
            f"Rank {self._own} has waited {self._limit:g} s for {self._name}.",
            f"The stages of a pipeline wait for each other, and rank {self._other} sends nothing.",
            f"look at the log of rank {self._other} and at its machine; the limit is --stall-timeout.",
        )


_SPINS_S: Final = 0.001
_PAUSE_S: Final = 5e-5  # the least that Linux sleeps


def _buffer(message: torch.Tensor) -> Any:
    from mpi4py import MPI

    return [message.numpy(), MPI.BYTE]


class HorovodLink(Neighbours):
    def __init__(self, hvd: Any, process_set: Any, rank: int, other: int, device: torch.device) -> None:
        super().__init__(rank, other, device)
        self._hvd, self._process_set = hvd, process_set
        self._sent: deque[Any] = deque()  # handles of what may not have arrived; Horovod keeps the messages
        self._sends = self._receives = 0

    def send(self, tensor: torch.Tensor) -> None:
        while self._sent and self._hvd.poll(self._sent[0]):
            self._wait_for_oldest()
        if len(self._sent) == _UNDER_WAY:
            self._wait_for_oldest()
        self._sent.append(self._start(to_message(tensor), self._own, self._sends))
        self._sends += 1

    def receive(self) -> torch.Tensor:
        handle = self._start(torch.empty(0, dtype=torch.uint8), self._other, self._receives)
        self._receives += 1
        with waits_for_peers(name=self._name):
            message: torch.Tensor = self._hvd.synchronize(handle)
        return from_message(message).to(self._device)

    def flush(self) -> None:
        while self._sent:
            self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        handle = self._sent.popleft()
        with waits_for_peers(name=f"rank {self._other} to take what was sent"):
            self._hvd.synchronize(handle)

    def _start(self, message: torch.Tensor, sender: int, number: int) -> Any:
        low, high = sorted((self._own, self._other))
        # Names are used again, so that Horovod knows them already.
        name = f"hvdtrain.pipeline.{low}-{high}.from.{sender}.{number % _NAMES}"
        activity.now.collective = name
        return self._hvd.allgather_async(message, name=name, process_set=self._process_set)


_UNDER_WAY: Final = 32
_NAMES: Final = 2 * _UNDER_WAY  # more than can be under way


Ends = tuple[Link | None, Link | None]
"""Of a stage: what leads to the stage before, and to the next one."""


def local_ends(devices: Sequence[torch.device]) -> list[Ends]:
    pairs = [LocalLink.pair(first, second) for first, second in zip(devices, devices[1:], strict=False)]
    befores: list[Link | None] = [None, *(second for _, second in pairs)]
    afters: list[Link | None] = [*(first for first, _ in pairs), None]
    return list(zip(befores, afters, strict=True))


def rank_ends(grid: Grid, parallel: ParallelOptions, device: torch.device, limit: float) -> Ends:
    import horovod.torch as hvd

    rank, world = grid.topology.rank, mpi_world(parallel)

    def link(other: int) -> Link:
        if world is not None:
            return MpiLink(world, rank, other, device, limit)
        return HorovodLink(hvd, process_set_of(sorted((rank, other))), rank, other, device)

    return link(rank - 1) if grid.stage else None, None if grid.is_last else link(rank + 1)


_MESSAGES, _MESSAGE_SECONDS = 15, 60.0


def times_of_messages(topology: Topology, parallel: ParallelOptions, sizes: Sequence[int]) -> list[float]:
    """Seconds in which a message of each size gets from a rank to its neighbour, as between stages. Collective.

    Half of the time until a message has come back, the median of several.

    Args: `topology`: of an even number of workers, whose process sets have been formed; `sizes`: bytes, multiples of 4.
    """
    before, after = rank_ends(Grid(topology, 2), parallel, torch.device("cpu"), _MESSAGE_SECONDS)
    times = []
    for size in sizes:
        tensor, halves = torch.zeros(size // 4), []
        for _ in range(_MESSAGES):
            begin = time.perf_counter()
            if after is not None:
                after.send(tensor)
                after.receive()
            elif before is not None:
                before.send(before.receive())
            halves.append((time.perf_counter() - begin) / 2)
        times.append(statistics.median(halves))
    for link in filter(None, (before, after)):
        link.flush()
    return times

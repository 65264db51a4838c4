"""The helper process that reads and decodes batches, and the messages between it and the process that started it.

It runs `main` with the arguments SOCKET COLUMNS ARENA PARENT: three inherited descriptors and the parent's process id.
Not by multiprocessing's spawn, which would run the user's script again up to its main guard, and not by a fork, which a
process that has started MPI, CUDA or TensorFlow does not survive.

A message is a pickled object. The arrays of a reply travel through memory that both processes map: 0.34 ms instead of
0.43 ms from request to batch at 64x3x32x32 float32, on two cores. The first message is a `Setup`: what a helper needs
to read and decode as its parent would. All processes map one anonymous file in memory with the catalog's arrays.

Pickle is safe here: the socket pair has no name, so nobody else can write to it. Nothing is ever unpickled from a file.
"""

import io
import mmap
import os
import pickle
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError, ShardingError
from data_sharding.loading.decoding import Decode, Decoded, decode_spans
from data_sharding.loading.mapped_arrays import array_at, place_of_array
from data_sharding.loading.tensor_memory import parts_of_tensor, tensor_of
from data_sharding.reading.record_reader import RecordReader

_ALIGNMENT: Final = 64
# Between looks at who the parent is: a descendant that the parent forked may hold the socket open after its death.
_PARENT_CHECK_MS: Final = 1000


class Setup(NamedTuple):
    """Where to import from, what to unpickle, and where each array of the reader's catalog is: (begin, end), and
    whether it is read-only. Others, of an object's items, may be written to: a helper's changes are its own."""

    import_path: list[str]
    reader: bytes
    decode: bytes
    arrays: list[tuple[int, int, bool]]

    @classmethod
    def of(cls, reader: RecordReader, decode: Decode) -> tuple["Setup", int]:
        """The first message to helpers, and the descriptor of the file of arrays, which the caller closes."""
        buffers: list[pickle.PickleBuffer] = []
        pickled, arrays = (_pickled_reader(reader, buffers.append), _pickled(decode)), []
        descriptor, end = os.memfd_create("data_sharding-catalog"), 0
        with open(descriptor, "wb", closefd=False) as file:
            for view in (buffer.raw() for buffer in buffers):
                begin = -(-end // _ALIGNMENT) * _ALIGNMENT
                end = begin + view.nbytes
                file.seek(begin)
                file.write(view)
                arrays.append((begin, end, view.readonly))
        return cls(list(sys.path), *pickled, arrays), descriptor

    def open(self, descriptor: int) -> tuple[RecordReader, Decode]:
        """In the helper: the reader and the decode function."""
        shared = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
        parts = ((shared[begin:end], fixed) for begin, end, fixed in self.arrays)
        reader = pickle.loads(self.reader, buffers=[part.toreadonly() if fixed else part for part, fixed in parts])
        return reader, pickle.loads(self.decode)


class _Pickler(pickle.Pickler):
    """Refuses what the started script defines: a helper does not run that script again."""

    def reducer_override(self, obj: Any) -> Any:
        if getattr(obj, "__module__", None) == "__main__" and hasattr(obj, "__qualname__"):
            raise pickle.PicklingError(f"{obj.__qualname__} is defined in the script that was started")
        return NotImplemented


def _pickler() -> type[pickle.Pickler]:
    """That of cloudpickle if it is installed, else `_Pickler`. Tensors of torch share their memory as arrays do, and
    arrays over a mapped file travel as the place in it."""
    try:
        import cloudpickle
    except ModuleNotFoundError:
        base: Any = _Pickler
    else:
        base = cloudpickle.Pickler

    class Sharing(base):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if (place := place_of_array(obj)) is not None:
                return array_at, tuple(place)
            parts = parts_of_tensor(obj)
            return super().reducer_override(obj) if parts is None else (tensor_of, parts)

    return Sharing


def _pickled(obj: object, buffer_callback: Callable[[pickle.PickleBuffer], None] | None = None) -> bytes:
    """The object; with cloudpickle, if that is installed, what a script or a notebook defines travels by value."""
    content = io.BytesIO()
    try:
        _pickler()(content, protocol=5, buffer_callback=buffer_callback).dump(obj)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise PlanError(
            f"The decode function cannot be sent to another process: {error}.",
            "Decoding in processes needs one, and data, of which a process can be given a copy.",
            "define it at the top level of a module that can be imported, or decode in threads with processes=0.",
        ) from error
    return content.getvalue()


def _pickled_reader(reader: RecordReader, buffer_callback: Callable[[pickle.PickleBuffer], None]) -> bytes:
    try:
        return _pickled(reader, buffer_callback)
    except PlanError as error:
        if reader.catalog.format.is_stored:
            raise
        raise PlanError(
            error.fact.replace("The decode function", f"The {getattr(reader.catalog.format, 'kind', 'data set')}", 1),
            "Random transforms run in processes, each of which gets a copy of the object by pickle.",
            "open files, locks and connections when an item is made, or leave them out of the copy (__getstate__).",
        ) from error


class Failure(NamedTuple):
    """An exception on its way to the parent, and its attributes, which some classes do not pickle."""

    error: BaseException
    attributes: dict[str, object]

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """The exception with its traceback as a note; another one in its place if it cannot be pickled."""
        error.add_note("in a decode process:\n" + "".join(traceback.format_exception(error)))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception as reason:  # whatever a foreign class raises there: it must not hide the error itself
            replaced = RuntimeError(f"{type(error).__name__}: {error}")
            replaced.add_note(f"{type(error).__name__} cannot be pickled: {reason}")
            return cls(replaced, vars(error))
        return cls(error, vars(error))

    def rebuild(self) -> BaseException:
        self.error.__dict__.update(self.attributes)
        return self.error


class Arena:
    """Memory that two processes share, for the arrays of one message at a time; `descriptor` is an anonymous file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._mapped = descriptor, np.empty(0, np.uint8)

    def put(self, views: list[memoryview]) -> None:
        total = sum(view.nbytes for view in views)
        if total > len(self._mapped):
            os.ftruncate(self._descriptor, total)
        memory, begin = self._memory(total), 0
        for view in views:
            memory[begin : begin + view.nbytes] = np.frombuffer(view, np.uint8)
            begin += view.nbytes

    def get(self, lengths: list[int]) -> list[memoryview]:
        """Copies, of these lengths, of what `put` wrote."""
        memory, begin, copies = self._memory(sum(lengths)), 0, []
        for length in lengths:
            copies.append(memory[begin : begin + length].copy().data)
            begin += length
        return copies

    def _memory(self, total: int) -> NDArray[np.uint8]:
        if total > len(self._mapped):
            self._mapped = np.frombuffer(mmap.mmap(self._descriptor, total), np.uint8)
        return self._mapped


def send(channel: Connection, message: object, arena: Arena | None = None) -> None:
    """Send one message, its arrays through the arena if there is one. Raises OSError if the other end has gone.

    If the message cannot be pickled (PicklingError, TypeError, AttributeError), nothing was sent.
    """
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(message, protocol=5, buffer_callback=buffers.append if arena else None)
    views = [buffer.raw() for buffer in buffers]
    if arena:
        arena.put(views)
    channel.send_bytes(pickle.dumps((pickled, [view.nbytes for view in views])))


def receive(channel: Connection, arena: Arena | None = None) -> Any:
    """The next message, which was sent with an arena if there is one. Raises EOFError if the other end has gone."""
    try:
        pickled, lengths = pickle.loads(channel.recv_bytes())
    except OSError as error:
        raise EOFError("the other process has gone") from error
    return pickle.loads(pickled, buffers=arena.get(lengths) if arena else ())


def main() -> None:
    """What a helper does until its parent closes the socket or dies, even in the middle of a batch."""
    descriptor, columns, memory, parent = map(int, sys.argv[1:])
    channel, arena = Connection(descriptor), Arena(memory)
    os.set_inheritable(descriptor, False)
    # Ctrl-C reaches all processes of a terminal, Slurm signals all of a task's; the parent decides what it means.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(descriptor, parent), daemon=True).start()
    try:
        reading = _open(receive(channel), columns)
        while True:
            answer = _answer(reading, *receive(channel))
            try:
                send(channel, answer, arena)
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                send(channel, Failure.of(error), arena)
    except (EOFError, ConnectionError):
        return  # the parent closed the socket: nothing more is wanted


def _open(setup: Setup, columns: int) -> tuple[RecordReader, Decode] | Failure:
    sys.path[:] = setup.import_path
    try:
        return setup.open(columns)
    except ShardingError as error:  # a file that was replaced
        return Failure.of(error)
    except Exception as error:  # importing the user's module can raise anything
        refused = PlanError(
            f"A decode process cannot load the decode function: {type(error).__name__}: {error}.",
            "A process loads it by importing its module.",
            "put it into a module that can be imported without side effects, or decode in threads with processes=0.",
        )
        return Failure.of(refused)


def _answer(reading: tuple[RecordReader, Decode] | Failure, *request: object) -> Decoded | Failure:
    if isinstance(reading, Failure):
        return reading
    try:
        return decode_spans(*reading, *request)  # type: ignore[arg-type]
    except BaseException as error:  # handed to the parent, whatever it is
        return Failure.of(error)


def _end_with_parent(channel: int, parent: int) -> None:
    poller = select.poll()
    poller.register(channel, 0)  # no event asked for leaves those of the other end's going
    while not poller.poll(_PARENT_CHECK_MS) and os.getppid() == parent:
        pass
    os._exit(0)

"""Where the byte strings of a pickle are in its file, found without executing any of it.

A pickle is a program for a small stack machine. `pickle`'s unpickler in Python, whose instructions are a table, runs it
here with three changes: the table has only the instructions that build dicts, lists, numbers, strings and calls;
`find_class` imports nothing, and a call of what it returns becomes a `Call` that notes function, arguments and state;
long strings are skipped, and a `Span` says where they are.
"""

import pickle
import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, Final, NamedTuple

from data_sharding.errors import CorruptRecordError
from data_sharding.storage import ByteSource

_LONGEST_LINE: Final = 1 << 10
_LONGEST_NAME: Final = 64
_MOST_READS: Final = 1 << 21
"""Of opcodes and arguments: what the instructions of a pickle of 200,000 images, labels and file names take."""

_FOLLOWED: Final = (
    "PROTO NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 EMPTY_DICT EMPTY_LIST EMPTY_TUPLE LIST TUPLE TUPLE1 "
    "TUPLE2 TUPLE3 MARK APPEND APPENDS GLOBAL STACK_GLOBAL BUILD BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET "
    "STOP"
)
"""Instructions that do what they do in any unpickler."""

_LENGTHS: Final = {
    pickletools.TAKEN_FROM_ARGUMENT1: struct.Struct("<B"),
    pickletools.TAKEN_FROM_ARGUMENT4: struct.Struct("<i"),
    pickletools.TAKEN_FROM_ARGUMENT4U: struct.Struct("<I"),
    pickletools.TAKEN_FROM_ARGUMENT8U: struct.Struct("<Q"),
}
"""What precedes the strings of instructions of these kinds."""

_UNFOLLOWABLE: Final = (pickle.UnpicklingError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""What the unpickler raises for instructions that make no sense."""


class Span(NamedTuple):
    """A long string: bytes [begin, end) of the file, which are the string itself if `raw` and its UTF-8 otherwise."""

    begin: int
    end: int
    raw: bool


@dataclass(eq=False)
class Call:
    """A call that unpickling would make: the function as "module name", its arguments, the state set on its result."""

    function: str
    arguments: tuple[Any, ...]
    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Function(NamedTuple):
    name: str

    def __call__(self, *arguments: Any) -> Any:
        # Protocol 2 has no byte strings: Python 3 writes a call that makes them from text.
        if self.name == "_codecs encode" and isinstance(arguments[0], str) and arguments[1:] == ("latin1",):
            return arguments[0]
        return Call(self.name, arguments)


def read_pickled_dict(path: str, source: ByteSource) -> dict[str, Any]:
    """The dict in a file of pickle protocol 2 to 5, without entries whose keys are not short strings.

    Values are None, bool, int, tuple, list, dict, `Call`, str for strings of up to 64 bytes of any kind, and `Span` for
    longer ones, which are not read.
    Raises CorruptRecordError (it is cut short, no pickle, or one of other things than these).
    """
    with source.file() as file:
        try:
            result = _Machine(_Input(file, source.size())).load()
            if not isinstance(result, dict):
                raise _RefusedError(f"holds a {type(result).__name__}, where a dict was expected")
            return result
        except (_RefusedError, *_UNFOLLOWABLE) as error:
            wrong = "" if isinstance(error, _RefusedError) else f"cannot be followed: {type(error).__name__}: "
            raise CorruptRecordError(
                f"{path}, read as a pickle, {wrong}{error}, at byte offset {file.tell()}.",
                "The data in it cannot be found.",
                "restore the file from its source, and check that it is the one meant.",
                path=path,
                offset=file.tell(),
            ) from error


class _RefusedError(Exception):
    """The end of a sentence that begins with the file."""


class _Input:
    """The file of a pickle, whose reads are limited in number and end where the file does."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size, self._reads = file, size, 0

    def read(self, count: int) -> bytes:
        self._reads += 1
        if self._reads > _MOST_READS:
            raise _RefusedError("has too many instructions")
        content = self._file.read(count)
        if len(content) < count:
            raise _RefusedError("ends before it is complete")
        return content

    def readline(self) -> bytes:
        line = self._file.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise _RefusedError("has a line without an end")
        return line

    def string(self, length: int, raw: bool) -> str | Span:
        begin = self._file.tell()
        if not 0 <= length <= self._size - begin:
            raise _RefusedError(f"has {length} bytes announced where {self._size - begin} are left")
        if length <= _LONGEST_NAME:
            return self.read(length).decode("latin-1" if raw else "utf-8")
        self._file.seek(begin + length)
        return Span(begin, begin + length, raw)


class _Machine(pickle._Unpickler):
    dispatch: ClassVar = {}

    def __init__(self, file: _Input) -> None:
        super().__init__(file)
        self.input = file

    def find_class(self, module: str, name: str) -> _Function:
        return _Function(f"{module} {name}")


def _instruction(name: str, size: int) -> Callable[[Any], None]:
    """What the machine does at an instruction whose argument has this size, in the terms of pickletools."""

    def load_string(machine: Any) -> None:
        (length,) = _LENGTHS[size].unpack(machine.read(_LENGTHS[size].size))
        machine.append(machine.input.string(length, "UNICODE" not in name))

    def load_items(machine: Any) -> None:
        items = machine.pop_mark() if name == "SETITEMS" else [machine.stack.pop(), machine.stack.pop()][::-1]
        entries = zip(items[::2], items[1::2], strict=True)
        # Names are all that is asked for, and to hash other keys, such as nested tuples, may recurse without bound.
        dict.update(machine.stack[-1], {key: value for key, value in entries if isinstance(key, str)})

    def load_call(machine: Any) -> None:
        arguments, function = machine.stack.pop(), machine.stack.pop()
        if not isinstance(function, _Function) or not isinstance(arguments, tuple):
            raise _RefusedError("calls what is not a function")  # not named: it may be endless
        machine.append(function(*arguments))

    def refuse(_: Any) -> None:
        raise _RefusedError(f"uses the instruction {name}")

    if name in _FOLLOWED.split():
        return pickle._Unpickler.dispatch[getattr(pickle, name)[0]]
    if name == "FRAME":
        return lambda machine: machine.read(8)
    changed = {"SETITEM": load_items, "SETITEMS": load_items, "REDUCE": load_call}
    return changed.get(name, load_string if size in _LENGTHS and not name.startswith("LONG") else refuse)


for _opcode in pickletools.opcodes:
    _Machine.dispatch[ord(_opcode.code)] = _instruction(_opcode.name, _opcode.arg.n if _opcode.arg else 0)

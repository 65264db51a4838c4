"""Where the byte strings of a pickle lie in its file, found without executing any of it.

A pickle is a program for a small stack machine. This one runs the instructions that build dicts, lists, numbers and
strings; calls of functions, in which the danger of pickles lies, are noted as `Call` and never made. The layout of
each instruction comes from the standard library's `pickletools`, the meaning of each from `pickle`.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from data_sharding.errors import CorruptRecordError
from data_sharding.storage import ByteSource

_WINDOW: Final = 1 << 16
_LONGEST_LINE: Final = 1 << 10
_LONGEST_NAME: Final = 64
_MOST_INSTRUCTIONS: Final = 1 << 20
_OPCODES: Final = {opcode.code: opcode for opcode in pickletools.opcodes}
_LENGTHS: Final = {
    pickletools.TAKEN_FROM_ARGUMENT1: struct.Struct("<B"),
    pickletools.TAKEN_FROM_ARGUMENT4: struct.Struct("<i"),
    pickletools.TAKEN_FROM_ARGUMENT4U: struct.Struct("<I"),
    pickletools.TAKEN_FROM_ARGUMENT8U: struct.Struct("<Q"),
}


class Span(NamedTuple):
    """A long string: bytes [begin, end) of the file, which are the string itself if `raw` and its UTF-8 otherwise."""

    begin: int
    end: int
    raw: bool


class Function(NamedTuple):
    """A function or class by its module and name."""

    name: str


class Call:
    """A call that unpickling would make: what is called, with which arguments, and the state set on its result."""

    def __init__(self, function: Any, arguments: Any) -> None:
        self.function = function
        self.arguments = arguments
        self.state: Any = None

    def calls(self, *names: str) -> bool:
        """Whether it calls one of these functions, each written "module name"."""
        return isinstance(self.function, Function) and self.function.name in names


class _Instruction(NamedTuple):
    name: str
    at: int
    begin: int
    end: int


def read_pickled_dict(path: str, source: ByteSource) -> dict[str, Any]:
    """The dict that a file of pickle protocol 2 to 5 stands for, without entries whose keys are not short strings.

    Values are None, bool, int, tuple, list, dict, `Function`, `Call`, str for strings of up to 64 bytes of any kind,
    and `Span` for longer ones, which are not read.

    Raises:
        CorruptRecordError: it is cut short, no pickle, or one of other things than these.
    """
    result = _Machine(path, source).run()
    if not isinstance(result, dict):
        raise _refusal(path, 0, f"holds a {type(result).__name__}, where a dict was expected")
    return result


class _Machine:
    def __init__(self, path: str, source: ByteSource) -> None:
        self._path = path
        self._source = source
        self._size = source.size()
        self._window, self._window_begin = b"", 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        for count, step in enumerate(self._instructions()):
            if count == _MOST_INSTRUCTIONS:
                raise _refusal(self._path, step.at, f"has more than {_MOST_INSTRUCTIONS} instructions")
            if step.name == "STOP":
                break
            action = _ACTIONS.get(step.name)
            if action is None:
                raise _refusal(self._path, step.at, f"uses the instruction {step.name}")
            try:
                action(self, step)
            except (IndexError, KeyError, TypeError, ValueError, AttributeError) as error:
                reason = f"cannot be followed: {step.name} found {type(error).__name__}"
                raise _refusal(self._path, step.at, reason) from error
        return self._stack[-1] if self._stack else None

    def _instructions(self) -> Iterator[_Instruction]:
        position = 0
        while True:
            code = self._bytes(position, position + 1).decode("latin-1")
            opcode = _OPCODES.get(code)
            if opcode is None:
                raise _refusal(self._path, position, f"has no instruction {code!r}")
            begin, end = self._argument(opcode.arg.n if opcode.arg else 0, position)
            yield _Instruction(opcode.name, position, begin, end)
            # A line of a text argument ends with a newline that does not belong to it.
            position = end + (opcode.arg is not None and opcode.arg.n == pickletools.UP_TO_NEWLINE)

    def _argument(self, size: int, position: int) -> tuple[int, int]:
        begin = position + 1
        if size >= 0:
            return begin, begin + size
        if size == pickletools.UP_TO_NEWLINE:
            lines = 2 if self._bytes(position, begin) in (b"c", b"i") else 1
            return begin, self._end_of_lines(begin, lines)
        prefix = _LENGTHS[size]
        (length,) = prefix.unpack(self._bytes(begin, begin + prefix.size))
        begin += prefix.size
        if not 0 <= length <= self._size - begin:
            raise _refusal(self._path, position, f"has {length} bytes announced where {self._size - begin} are left")
        return begin, begin + length

    def _end_of_lines(self, begin: int, lines: int) -> int:
        found = self._bytes(begin, min(begin + _LONGEST_LINE, self._size)).split(b"\n", lines)
        if len(found) <= lines:
            raise _refusal(self._path, begin, "has a line without an end")
        return begin + sum(map(len, found[:lines])) + lines - 1

    def _bytes(self, begin: int, end: int) -> bytes:
        if end > self._size:
            raise _refusal(self._path, self._size, "ends before it is complete")
        first = begin - self._window_begin
        if first < 0 or end - self._window_begin > len(self._window):
            # One window for many instructions: each access to a remote source is a request.
            self._window, self._window_begin = self._source[begin : max(end, min(begin + _WINDOW, self._size))], begin
            first = 0
        return self._window[first : first + end - begin]

    # Instructions, in the words of pickle.py.

    def push_string(self, step: _Instruction) -> None:
        raw = "UNICODE" not in step.name
        if step.end - step.begin > _LONGEST_NAME:
            self._stack.append(Span(step.begin, step.end, raw))
        else:
            self._stack.append(self._bytes(step.begin, step.end).decode("latin-1" if raw else "utf-8"))

    def push_integer(self, step: _Instruction) -> None:
        self._stack.append(int.from_bytes(self._bytes(step.begin, step.end), "little", signed=step.name in _SIGNED))

    def push_constant(self, step: _Instruction) -> None:
        self._stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[step.name])

    def push_empty(self, step: _Instruction) -> None:
        self._stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[step.name]())

    def push_global(self, step: _Instruction) -> None:
        if step.name == "GLOBAL":
            name = self._bytes(step.begin, step.end).decode("latin-1").replace("\n", " ")
        else:
            module, name = self._take(2)
            name = f"{module} {name}"
        self._stack.append(Function(name))

    def mark(self, _: _Instruction) -> None:
        self._marks.append(len(self._stack))

    def gather(self, step: _Instruction) -> None:
        items = self._take(int(step.name[-1])) if step.name[-1] in "123" else self._after_mark()
        self._stack.append(items if step.name == "LIST" else tuple(items))

    def append(self, step: _Instruction) -> None:
        items = self._after_mark() if step.name == "APPENDS" else self._take(1)
        list.extend(self._stack[-1], items)

    def set_items(self, step: _Instruction) -> None:
        items = self._take(2) if step.name == "SETITEM" else self._after_mark()
        entries = zip(items[::2], items[1::2], strict=True)
        # Names are all that is asked for, and to hash other keys, such as nested tuples, may recurse without bound.
        dict.update(self._stack[-1], {key: value for key, value in entries if isinstance(key, str)})

    def memoize(self, step: _Instruction) -> None:
        slot = (
            len(self._memo) if step.name == "MEMOIZE" else int.from_bytes(self._bytes(step.begin, step.end), "little")
        )
        self._memo[slot] = self._stack[-1]

    def recall(self, step: _Instruction) -> None:
        self._stack.append(self._memo[int.from_bytes(self._bytes(step.begin, step.end), "little")])

    def reduce(self, _: _Instruction) -> None:
        call = Call(*self._take(2))
        encodes = (
            call.calls("_codecs encode") and isinstance(call.arguments, tuple) and call.arguments[1:] == ("latin1",)
        )
        # Protocol 2 has no byte strings: Python 3 writes a call that makes them from text.
        self._stack.append(call.arguments[0] if encodes and isinstance(call.arguments[0], str) else call)

    def build(self, _: _Instruction) -> None:
        state = self._stack.pop()
        if not isinstance(self._stack[-1], Call):
            raise TypeError("state can be set on the result of a call only")
        self._stack[-1].state = state

    def skip(self, _: _Instruction) -> None:
        pass

    def _take(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise IndexError("the stack is empty")
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def _after_mark(self) -> list[Any]:
        depth = self._marks.pop()
        taken = self._stack[depth:]
        del self._stack[depth:]
        return taken


def _refusal(path: str, offset: int, reason: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"{path}, read as a pickle, {reason}, at byte offset {offset}.",
        "The data in it cannot be found.",
        "restore the file from its source, and check that it is the one meant.",
        path=path,
        offset=offset,
    )


_SIGNED: Final = ("BININT", "LONG1")

_ACTIONS: Final[dict[str, Callable[[_Machine, _Instruction], None]]] = {
    **dict.fromkeys(("PROTO", "FRAME"), _Machine.skip),
    **dict.fromkeys(("BINSTRING", "SHORT_BINSTRING"), _Machine.push_string),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), _Machine.push_string),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"), _Machine.push_string),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1"), _Machine.push_integer),
    **dict.fromkeys(("NONE", "NEWTRUE", "NEWFALSE"), _Machine.push_constant),
    **dict.fromkeys(("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"), _Machine.push_empty),
    **dict.fromkeys(("GLOBAL", "STACK_GLOBAL"), _Machine.push_global),
    **dict.fromkeys(("LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"), _Machine.gather),
    **dict.fromkeys(("APPEND", "APPENDS"), _Machine.append),
    **dict.fromkeys(("SETITEM", "SETITEMS"), _Machine.set_items),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.memoize),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _Machine.recall),
    "MARK": _Machine.mark,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}

"""A checksum of a task's code, by which a resumed command notices that it was edited."""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from hvdtrain.version import __version__


def code_checksum(task: object) -> str:
    """Of the files of the classes that the task is made of, but hvdtrain's, which its version stands for.

    A class of a script or of a notebook's cell counts by the code of its methods: in workers, the main module is
    another one. What is called in other modules is not known.
    """
    sums = hashlib.sha256(__version__.encode())
    for kind in type(task).__mro__:
        if kind.__module__.partition(".")[0] not in ("builtins", "hvdtrain"):
            sums.update(_file_of(kind) or repr(list(_methods_of(kind))).encode())
    return sums.hexdigest()


def _file_of(kind: type) -> bytes | None:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) if kind.__module__ != "__main__" else None
    try:
        return None if file is None else Path(file).read_bytes()
    except OSError:
        return None


def _methods_of(kind: type) -> Iterator[Any]:
    for name, value in sorted(vars(kind).items()):
        code = getattr(getattr(value, "__func__", value), "__code__", None)
        if code is not None:
            yield name, list(_parts_of(code))


def _parts_of(code: CodeType) -> Iterator[Any]:
    """Without line numbers."""
    yield code.co_code.hex(), code.co_names, code.co_varnames
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield list(_parts_of(constant))
        else:  # a set's order is another one in each process
            yield sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant)

"""The docstrings of classes, also where Python has thrown them away (`python -OO`, PYTHONOPTIMIZE=2)."""

import ast
import inspect
import sys
import textwrap
from typing import Any, Final

_WITHOUT_DOCSTRINGS: Final = 2  # the value of sys.flags.optimize from which on Python keeps none


def docstring_of(kind: type[Any]) -> str:
    """The docstring that is written in the class itself; "" where there is none.

    Without docstrings it is read from the source: a dataclass then has its signature as `__doc__`.
    """
    if sys.flags.optimize < _WITHOUT_DOCSTRINGS or kind is object:
        return kind.__doc__ or ""
    definition = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    if not isinstance(definition, ast.ClassDef):
        raise TypeError(f"the source of {kind.__name__} is a class")
    return ast.get_docstring(definition) or ""

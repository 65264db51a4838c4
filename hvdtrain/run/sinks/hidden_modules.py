"""Imports of packages that would import much more than is needed of them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hidden(*names: str) -> Iterator[None]:
    """Inside, these modules are as if they were not installed, unless they are imported already."""
    absent = [name for name in names if name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(absent))  # Python's own mark of a module that is not to be found
    try:
        yield
    finally:
        for name in absent:
            modules.pop(name, None)


@contextmanager
def forgotten_after(package: str) -> Iterator[None]:
    """What is imported of `package` inside is forgotten after, unless it was there before: others who import it then
    get it with all that it would import."""
    known = package in sys.modules
    try:
        yield
    finally:
        if not known:
            for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
                del sys.modules[name]

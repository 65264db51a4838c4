"""Runs a command line and prints, as the last line, the top-level modules that it imported: JSON, sorted.

    python imports_of.py [--without MODULE ...] -- ARGV

Modules named by --without are as if they were not installed.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, DistributionFinder
from types import ModuleType
from typing import Any

from hvdtrain.cli import main


class Hiding(importlib.abc.MetaPathFinder):
    """Finds what `finders` find, but for some modules."""

    def __init__(self, finders: Sequence[Any], hidden: Sequence[str]) -> None:
        self._finders, self._hidden = finders, hidden

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in self._hidden:
            return None
        specs = (finder.find_spec(fullname, path, target) for finder in self._finders)
        return next((spec for spec in specs if spec is not None), None)

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:
        """Of packages, for their versions."""
        if context.name not in self._hidden:
            for finder in self._finders:
                yield from getattr(finder, "find_distributions", lambda _: ())(context)


if __name__ == "__main__":
    split = sys.argv.index("--")
    sys.meta_path[:] = [Hiding(list(sys.meta_path), sys.argv[2:split])]
    code = main(sys.argv[split + 1 :])
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
    raise SystemExit(code)

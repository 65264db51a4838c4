"""What all saved results have in common: when, where and on what they were measured, as JSON, a page and a picture."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.commands import REPOSITORY
from benchmarks.compact_json import compact_json
from benchmarks.render import render

RESULTS = REPOSITORY / "benchmarks" / "results"


def installed(names: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed."""
    return {name: metadata.version(name) for name in names if any(True for _ in metadata.distributions(name=name))}


def begun(versions: Mapping[str, str]) -> dict[str, Any]:
    """A result that begins now."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"date": now, "machine": machine.describe(), "versions": dict(versions)}


def new_path(result: Mapping[str, Any], kind: str, folder: Path) -> Path:
    """KIND-<date>.json in the folder, which is made; KIND-<date>-2.json if that is there, and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{kind}-{result['date'][:10]}"
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(path for name in names if not (path := folder / f"{name}.json").exists())


def write(result: dict[str, Any], path: Path) -> None:
    """Write the result, and beside it the page and the picture, which are made from what the JSON gives back."""
    result["machine"]["load_at_end"] = machine.describe()["load"]
    path.write_text(compact_json(result))
    render(path)
    print(f"wrote {path}, .md and .svg")


def save(result: dict[str, Any], kind: str, folder: Path) -> None:
    """Write a new KIND-<date>.json, .md and .svg."""
    write(result, new_path(result, kind, folder))


def head(title: str, result: Mapping[str, Any]) -> str:
    """A page's title, and the paragraph on machine and versions."""
    where = result["machine"]
    processors = ", ".join([where["cpu"], *where.get("gpus", ())])
    return (
        f"# {title}, {result['date'][:10]}\n\n"
        f"{processors}, {where['cores']} cores, {where['memory_gib']} GiB; Linux {where['kernel']}; Python "
        f"{where['python']}; commit {where['commit']}; load {where['load'][0]:.1f} before, "
        f"{where['load_at_end'][0]:.1f} after. "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + ". Method: [benchmarks/README.md](../README.md). Every block is in the JSON file beside this page."
    )

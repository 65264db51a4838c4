"""What all saved results have in common: when, where and on what they were measured, as JSON and as a page."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.commands import REPOSITORY
from benchmarks.statistics import Ratio

RESULTS = REPOSITORY / "benchmarks" / "results"


def installed(names: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed."""
    return {name: metadata.version(name) for name in names if any(True for _ in metadata.distributions(name=name))}


def begun(versions: Mapping[str, str]) -> dict[str, Any]:
    """A result that begins now."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"date": now, "machine": machine.describe(), "versions": dict(versions)}


def save(result: dict[str, Any], kind: str, folder: Path, markdown: Callable[[dict[str, Any]], str]) -> None:
    """Write KIND-<date>.json and .md; the page is made from what the JSON gives back."""
    result["machine"]["load_at_end"] = machine.describe()["load"]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}-{result['date'][:10]}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(json.loads(path.read_text())))
    print(f"wrote {path} and .md")


def head(title: str, result: Mapping[str, Any]) -> str:
    """A page's title, and the paragraph on machine and versions."""
    where = result["machine"]
    return (
        f"# {title}, {result['date'][:10]}\n\n"
        f"{where['cpu']}, {where['cores']} cores, {where['memory_gib']} GiB; Linux {where['kernel']}; Python "
        f"{where['python']}; commit {where['commit']}; load {where['load'][0]:.1f} before, "
        f"{where['load_at_end'][0]:.1f} after. "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + ". Method: [benchmarks/README.md](../README.md). Every block is in the JSON file beside this page."
    )


def shown(ratio: Ratio, noise: Ratio | None = None) -> str:
    """With its interval; in brackets if it is not beyond `noise`."""
    text = f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
    return text if noise is None or ratio.beyond(noise) else f"[{text}]"

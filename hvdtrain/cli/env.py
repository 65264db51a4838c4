"""`hvdtrain env`: show versions, what Horovod was built with, and this process's rank in its job.

    hvdtrain env [--explain] [--json] [--all-ranks]

Imports no framework: versions come from package metadata, Horovod's bindings from the files it installed. `--explain`
asks Horovod itself for its transports, in a child process with a deadline. Prints known topology variables only.
"""

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.cli.tables import print_table
from hvdtrain.doctor.software import FRAMEWORKS, probe_framework
from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.topology import Evidence, Topology, detect_topology, explain
from hvdtrain.version import PACKAGES, versions

_DESCRIPTION = "`hvdtrain env`: show versions, what Horovod was built with, and this process's rank in its job."
OPTIONS = ("--explain", "--json", "--all-ranks", "--debug", "--help")
PROBE_SECONDS = 120.0
"""Deadline for the child that imports a framework: TensorFlow takes 4 s from a warm disk, much more from a cold one."""


def run(argv: Sequence[str]) -> int:
    """Print what `argv` asks for, on rank 0 unless `--all-ranks`; returns 0."""
    options = _parse(argv)
    evidence = explain(os.environ) if options.explain else []
    try:
        topology = detect_topology(os.environ)
    except UsageError:
        if options.explain and not options.json:
            _print_evidence(evidence)
        raise
    if options.all_ranks:
        _write(json.dumps(asdict(topology)) if options.json else _one_line(topology))
    elif topology.is_root:
        _report(topology, evidence, options)
    elif not options.json:  # of many ranks one table is enough, but nobody is to see nothing at all
        _write(f"{_one_line(topology)}; rank 0 prints the tables")
    return 0


def _report(topology: Topology, evidence: list[Evidence], options: argparse.Namespace) -> None:
    frameworks = horovod_frameworks()
    transports = horovod_transports(frameworks[0]) if options.explain and frameworks else None
    if options.json:
        horovod = {"frameworks": frameworks, **({"transports": transports} if transports is not None else {})}
        report: dict[str, Any] = {"versions": all_versions(), "horovod": horovod, "topology": asdict(topology)}
        if options.explain:
            report["evidence"] = [asdict(item) for item in evidence]
        _write(json.dumps(report, indent=2))
        return
    built_for = ", ".join(frameworks) or "no framework"
    _print_pairs("versions", {**all_versions(), "Horovod built for": built_for, **_described(transports)})
    facts = {name: value for name, value in asdict(topology).items() if name != "source"}
    facts["hosts"] = ", ".join(topology.hosts) or "not known"
    _print_pairs("topology", facts, topology.source if options.explain else None)
    if options.explain:
        _print_evidence(evidence)


def all_versions() -> dict[str, str]:
    """Every package that matters, "not installed" where it is not."""
    return {**dict.fromkeys(("python", "hvdtrain", *PACKAGES), "not installed"), **versions()}


def horovod_frameworks() -> list[str]:
    """The frameworks for which Horovod installed a compiled extension; nothing is imported."""
    spec = importlib.util.find_spec("horovod")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    return [name for name in FRAMEWORKS if any(any((f / name).glob("mpi_lib*.so")) for f in folders)]


def horovod_transports(framework: str, deadline: float = PROBE_SECONDS) -> dict[str, bool] | str:
    """Transport → whether Horovod was built with it, asked in a child process that imports the binding for `framework`.

    A sentence if that failed, or took more than `deadline` seconds.
    """
    probe = probe_framework(framework, deadline)
    if reason := probe.get("error") or probe["horovod_error"]:
        return f"horovod.{framework} cannot be imported: {reason}"
    transports: dict[str, bool] = probe["horovod"]
    return transports


def _described(transports: dict[str, bool] | str | None) -> dict[str, str]:
    if transports is None:
        return {}
    if isinstance(transports, str):
        return {"Horovod transports": transports}
    return {"Horovod transports": ", ".join(name for name, built in transports.items() if built) or "none"}


def _one_line(topology: Topology) -> str:
    t = topology
    return (
        f"rank {t.rank} of {t.size}, local rank {t.local_rank} of {t.local_size}, "
        f"node {t.node_rank} of {t.num_nodes}, by {t.launcher}"
    )


def _write(text: str) -> None:
    # One write for the whole text: launchers mix the outputs of ranks line by line.
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _print_pairs(title: str, pairs: Mapping[str, object], source: Mapping[str, str] | None = None) -> None:
    rows = [
        [name, str(value), *([source.get(name, "")] if source is not None else [])] for name, value in pairs.items()
    ]
    print_table("", [title, "", *(["decided by"] if source is not None else [])], rows, numbers=False)
    print()


def _print_evidence(evidence: Sequence[Evidence]) -> None:
    rows = []
    for item in evidence:
        variables = "\n".join(f"{name}={value}" for name, value in item.variables.items())
        rows.append([item.platform, variables, "yes" if item.used else "no", item.why])
    print_table("", ["evidence", "variables", "used", "why"], rows, numbers=False)
    print()


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    nothing, hint = "Nothing was printed.", did_you_mean("", OPTIONS)
    parser = CommandParser("hvdtrain env", nothing, hint, description=_DESCRIPTION)
    parser.add_argument("--explain", action="store_true", help="which variable decided each fact, and what was ignored")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--all-ranks", action="store_true", help="print one line on every rank")
    options, unknown = parser.parse_own(argv)
    if unknown:
        option = unknown[0].partition("=")[0]
        raise UsageError(f"`hvdtrain env` has no option {option!r}.", nothing, did_you_mean(option, OPTIONS))
    return options

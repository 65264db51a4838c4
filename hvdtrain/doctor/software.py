"""Versions, the mpirun that would start, importable frameworks, and what Horovod was built for."""

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hvdtrain.doctor.findings import Facts, Finding, HostFacts, Status, each_value, on_each_host
from hvdtrain.launch.execute import find_program, run_program
from hvdtrain.version import PACKAGES, versions

FRAMEWORKS = ("torch", "tensorflow")
_VERSION_SECONDS = 10.0
_TAIL = 300


def software_facts() -> dict[str, Any]:
    """Keys: `versions` {name: version or None}, `python` (path), `kernel`, `mpirun` {`path`, `version`} or None."""
    mpirun = shutil.which("mpirun") or find_program("mpirun")
    return {
        "versions": {**dict.fromkeys(PACKAGES), **versions()},
        "python": sys.executable,
        "kernel": platform.release(),
        "mpirun": None if mpirun is None else {"path": mpirun, "version": _first_line([mpirun, "--version"])},
    }


def framework_facts(wanted: Sequence[str], seconds: float) -> dict[str, Any]:
    """Framework → what `hvdtrain.doctor.framework_probe` prints, or {`error`: a text}, each in a child of its own.

    Those that are `wanted`, or, if none is, those that are installed; each has `seconds` to answer.
    """
    there = versions()
    names = list(wanted) or [name for name in FRAMEWORKS if name in there]
    if not names:
        return {}
    with ThreadPoolExecutor(len(names)) as pool:
        return dict(zip(names, pool.map(lambda name: probe_framework(name, seconds), names), strict=True))


def probe_framework(framework: str, seconds: float) -> dict[str, Any]:
    """See `framework_facts`."""
    if framework not in versions():
        return {"error": "not installed"}
    try:
        done = run_program([sys.executable, "-m", "hvdtrain.doctor.framework_probe", framework], seconds)
    except subprocess.TimeoutExpired:
        return {"error": f"the import took more than {seconds:g} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        return {"error": f"the import ended with {ended}: {last_line(done.stderr)[:_TAIL]}".rstrip(": ")}
    facts: dict[str, Any] = json.loads(lines[-1])
    return facts


def _first_line(command: list[str]) -> str:
    """What a program says first; "" where it says nothing in time, which is a fact as well."""
    try:
        done = run_program(command, _VERSION_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next(iter((done.stdout + done.stderr).strip().splitlines()), "")


def last_line(text: str) -> str:
    """What a program said last; "" where it said nothing."""
    return next(reversed(text.strip().splitlines()), "")


_DECIDING = ("python", "hvdtrain", "horovod", "torch", "tensorflow", "keras")
"""Different ones among the ranks of a job exchange tensors, or pickle-free state, that the others read otherwise."""

_INSTALL = "run `python -m hvdtrain.horovod_wheel install` in the environment that the job uses"


def version_findings(hosts: HostFacts) -> list[Finding]:
    """One finding a package that differs; one for all that agree."""
    tables = {host: facts["software"]["versions"] for host, facts in hosts.items()}
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    different = [name for name in names if len({table.get(name) for table in tables.values()}) > 1]
    first = next(iter(tables.values()))
    equal = [f"{name} {version}" for name, version in first.items() if version and name not in different]
    findings = [Finding("versions", "ok", ", ".join(equal))]
    for name in different:
        values = {host: table.get(name) or "not installed" for host, table in tables.items()}
        hint = "install the same version on every host."
        status: Status = "fail" if name in _DECIDING else "warn"
        findings.append(Finding("versions", status, f"{name} is {each_value(values)}", hint))
    return [*findings, *_architectures(hosts)]


def _architectures(hosts: HostFacts) -> Iterator[Finding]:
    architectures = {host: facts["machine"]["architecture"] for host, facts in hosts.items()}
    if len(set(architectures.values())) > 1:
        parts = ", ".join(f"{host} is {name}" for host, name in architectures.items())
        yield Finding("versions", "warn", parts, "use hosts of one kind: results differ in the last bits otherwise.")


def frameworks_on_host(facts: Facts, frameworks: Sequence[str], workers: int) -> Iterator[Finding]:
    """Whether frameworks and Horovod's bindings for them can be imported, and what Horovod was built for.

    Args:
        frameworks: those asked for. Empty: what is installed must be whole, and the one that `hvdtrain train` then
            takes, the first, must have its Horovod.
        workers: of the job; one alone needs no Horovod.
    """
    probes, installed = facts["frameworks"], facts["software"]["versions"]
    if not probes:
        hint = "install one of them: pip install 'hvdtrain[torch]'."
        yield Finding("frameworks", "fail", "neither torch nor tensorflow is installed", hint)
    working = [name for name in probes if probes[name].get("horovod")]
    for name, facts_of in probes.items():
        if not installed.get(name):
            hint = f"install it: pip install 'hvdtrain[{name}]'."
            yield Finding("frameworks", "fail", f"{name} is not installed", hint)
        elif facts_of.get("error"):
            hint = f"run `python -c 'import {name}'` there to see all of it, and reinstall {name}."
            if len(probes) > 1:
                hint += " --framework examines one alone."
            yield Finding("frameworks", "fail", f"{name}: {facts_of['error']}", hint)
        else:
            yield Finding("frameworks", "ok", f"{name} {installed[name]} can be imported")
            needed = name in frameworks or name == next(iter(probes)) or not working
            yield _binding(name, facts_of, needed, workers)


def _binding(framework: str, probe: Mapping[str, Any], needed: bool, workers: int) -> Finding:
    built = probe["horovod"]
    if built is None:
        status: Status = "ok" if workers == 1 else "fail" if needed else "warn"
        fact = f"no Horovod for {framework}: {probe['horovod_error']}"
        return Finding("horovod", status, fact, "" if workers == 1 else f"{_INSTALL}.")
    transports = [name for name in ("mpi", "gloo", "nccl") if built[name]]
    if not transports:
        return Finding("horovod", "fail", f"{framework}: built for no transport", f"{_INSTALL}.")
    fact = f"{framework}: built for {', '.join(transports)}"
    if probe["gpus"] and not built["nccl"]:
        hint = f"put CUDA's nvcc on PATH and {_INSTALL}: gradients pass through the CPU's memory otherwise."
        return Finding("horovod", "warn", f"{fact}, not nccl, and there are {probe['gpus']} GPUs", hint)
    return Finding("horovod", "ok", fact)


def mpi_findings(hosts: HostFacts) -> list[Finding]:
    """Whether the MPI that Horovod loads is the one whose mpirun starts the job, on each host and over hosts."""
    findings = on_each_host(hosts, _mpi_on_host)
    loaded = {host: _loaded(facts) for host, facts in hosts.items()}
    if len({_version(text) for text in loaded.values()}) > 1:
        values = {host: _short(text) if text else "none" for host, text in loaded.items()}
        hint = f"install one MPI on every host, then {_INSTALL}."
        findings.append(Finding("mpi", "warn", f"Horovod loads {each_value(values)}", hint))
    return findings


def _mpi_on_host(facts: Facts) -> Iterator[Finding]:
    loaded, mpirun = _loaded(facts), facts["software"]["mpirun"]
    if loaded is None:
        yield Finding("mpi", "ok", "Horovod loads no MPI: Gloo connects the workers")
    elif mpirun is None:
        hint = "use `hvdtrain launch` or `horovodrun --gloo`, or put that MPI's mpirun on PATH."
        yield Finding("mpi", "warn", f"Horovod loads {_short(loaded)}, and there is no mpirun", hint)
    elif _version(loaded) != _version(mpirun["version"]):
        fact = f"Horovod loads {_short(loaded)}, and {mpirun['path']} is {mpirun['version'] or 'silent'}"
        hint = "call the mpirun of the MPI that Horovod was built with: workers of another see only themselves."
        yield Finding("mpi", "warn", fact, hint)
    else:
        yield Finding("mpi", "ok", f"Horovod and mpirun are both {_short(loaded)}")


def _loaded(facts: Facts) -> str | None:
    texts = [probe.get("mpi") for probe in facts["frameworks"].values()]
    return next((text for text in texts if text), None)


def _short(text: str) -> str:
    return text.partition(",")[0]


def _version(text: str | None) -> str | None:
    """ "Open MPI 5.0.11" of what a library or an mpirun says of itself; other texts as they are."""
    if text is None:
        return None
    numbers = re.search(r"\d+\.\d+(\.\d+)?", text)
    maker = "Open MPI" if re.search(r"Open ?(MPI|RTE)", text) else "Intel" if "Intel" in text else "MPICH"
    return f"{maker} {numbers[0]}" if numbers else text

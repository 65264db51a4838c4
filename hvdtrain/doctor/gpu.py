"""GPUs as the driver's own tool and the frameworks see them, and findings about them."""

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from hvdtrain.doctor.findings import Facts, Finding, HostFacts, each_value, on_each_host
from hvdtrain.doctor.software import last_line
from hvdtrain.launch.execute import run_program

_SECONDS = 20.0
_QUESTION = "index,name,driver_version,memory.total,memory.used"


def gpu_facts() -> dict[str, Any]:
    """Keys: `tool` (path of nvidia-smi or None), `error` (a text or None), `devices`: each with `index`, `name`,
    `driver`, `memory` and `used` in MiB.
    """
    tool = shutil.which("nvidia-smi")
    facts: dict[str, Any] = {"tool": tool, "error": None, "devices": []}
    if tool is None:
        return facts
    try:
        done = run_program([tool, f"--query-gpu={_QUESTION}", "--format=csv,noheader,nounits"], _SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {**facts, "error": str(error)}
    if done.returncode != 0:
        return {**facts, "error": last_line(done.stdout + done.stderr) or f"exit code {done.returncode}"}
    return {**facts, "devices": parse_devices(done.stdout)}


def parse_devices(text: str) -> list[dict[str, Any]]:
    """The lines of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`; what it does not know becomes 0."""
    lines = [[word.strip() for word in line.split(",")] for line in text.splitlines()]
    return [
        {"index": index, "name": name, "driver": driver}
        | {key: int(mib) if mib.isdigit() else 0 for key, mib in (("memory", memory), ("used", used))}
        for index, name, driver, memory, used in (words for words in lines if len(words) == 5)
    ]


def gpu_findings(hosts: HostFacts) -> list[Finding]:
    """What driver and frameworks see; whether all hosts have the same number; memory that others use."""
    findings = on_each_host(hosts, _gpus_on_host)
    counts = {host: len(facts["gpu"]["devices"]) for host, facts in hosts.items()}
    if len(set(counts.values())) > 1:
        hint = "give each host as many slots as it has GPUs."
        findings.append(Finding("gpu", "warn", f"GPUs: {each_value(counts)}", hint))
    drivers = {device["driver"] for facts in hosts.values() for device in facts["gpu"]["devices"]}
    if len(drivers) > 1:
        hint = "install one driver on every host: NCCL may not connect different ones."
        findings.append(Finding("gpu", "warn", f"drivers: {', '.join(sorted(drivers))}", hint))
    return findings


def _gpus_on_host(facts: Facts) -> Iterator[Finding]:
    gpu = facts["gpu"]
    if gpu["error"]:
        hint = "run nvidia-smi there; a driver that was updated needs its modules reloaded, or a reboot."
        yield Finding("gpu", "fail", f"nvidia-smi: {gpu['error']}", hint)
        return
    if not gpu["devices"]:
        yield Finding("gpu", "ok", "none: workers compute on the CPU")
        return
    names = ", ".join(sorted({device["name"] for device in gpu["devices"]}))
    yield Finding("gpu", "ok", f"{len(gpu['devices'])} × {names}, driver {gpu['devices'][0]['driver']}")
    yield from _unseen(facts)
    busy = [f"{device['index']}: {device['used']} MiB" for device in gpu["devices"] if device["used"] > 1024]
    if busy:
        hint = "see with nvidia-smi whose processes these are; a job on them runs out of memory or slows down."
        yield Finding("gpu", "warn", f"memory is in use already, GPU {', '.join(busy)}", hint)


def _unseen(facts: Facts) -> Iterator[Finding]:
    for name, seen in facts["frameworks"].items():
        if "error" in seen or seen["gpus"] == len(facts["gpu"]["devices"]):
            continue
        built = "is a build for CPUs" if not seen["cuda"] else f"sees {seen['gpus']}, CUDA {seen['cuda']}"
        hint = f"install a CUDA build of {name} that the driver supports, and look at CUDA_VISIBLE_DEVICES."
        yield Finding("gpu", "warn", f"{name} {built}, the driver {len(facts['gpu']['devices'])}", hint)

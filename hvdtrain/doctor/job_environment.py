"""Variables that change how a job runs, and jobs that still run: facts of a host, and findings about them."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdtrain.doctor.findings import Facts, Finding, Status
from hvdtrain.launch.supervisor.restarts import after_program

_PREFIXES = ("HOROVOD_", "NCCL_", "OMP_", "MKL_", "GLOO_", "HVDTRAIN_", "UCX_", "OMPI_MCA_", "PRTE_MCA_")
_NAMES = (
    "CUDA_VISIBLE_DEVICES",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LD_PRELOAD",
    "KERAS_BACKEND",
)
_SECRETS = ("HVDTRAIN_SECRET", "HOROVOD_SECRET_KEY", "HOROVOD_GLOO_RENDEZVOUS_ADDR")
"""Never shown: who knows them may take part in a job."""

_COMMANDS = ("train", "launch")


def environment_facts(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter, with their values; "(set)" for secrets."""
    return {
        name: "(set)" if name in _SECRETS else value
        for name, value in sorted(environ.items())
        if name in _NAMES or name.startswith(_PREFIXES)
    }


def job_processes(proc: Path = Path("/proc")) -> list[dict[str, Any]]:
    """`pid`, `user` (number) and `command` of every process that trains or launches with hvdtrain, as far as this user
    may see them.
    """
    processes = []
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            user = folder.stat().st_uid
        except OSError:
            continue  # ended meanwhile
        command = job_command(words)
        if command is not None and int(folder.name) != os.getpid():
            processes.append({"pid": int(folder.name), "user": user, "command": command})
    return sorted(processes, key=lambda process: int(process["pid"]))


def job_command(words: Sequence[str]) -> str | None:
    """`hvdtrain train` or `hvdtrain launch` if an argv is one of those, else None.

    A launcher's own command line holds the workers' one; only what Python itself runs counts.
    """
    program = Path(words[0]).name if words else ""
    if not (program.startswith("python") or program == "hvdtrain"):
        return None
    command = after_program(words)
    if command is None:
        return None
    name = command[0] if command and not command[0].startswith("-") else "train"
    return f"hvdtrain {name}" if name in _COMMANDS and "--help" not in command else None


_SLOWER = {
    "NCCL_P2P_DISABLE": "GPUs of one host then exchange through its memory",
    "NCCL_SHM_DISABLE": "workers of one host then exchange over the network",
    "NCCL_IB_DISABLE": "hosts then exchange over TCP although there may be InfiniBand",
    "HOROVOD_STALL_CHECK_DISABLE": "a stalled collective is then never reported",
    "HOROVOD_ELASTIC": "workers then look for Horovod's elastic driver",
    "HOROVOD_TIMELINE": "every operation is then written to a file",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "it was slower than NCCL's own rings wherever NCCL knows the hosts",
}
"""Switched on, they cost something: the reason."""

_TUNED = ("HOROVOD_CYCLE_TIME", "HOROVOD_FUSION_THRESHOLD", "HOROVOD_CACHE_CAPACITY", "HOROVOD_GLOO_TIMEOUT_SECONDS")
_PLACES = ("HOROVOD_RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK")
_ALWAYS = {
    **dict.fromkeys(_PLACES, "unset it: a process started from this shell would believe to be part of a job."),
    **dict.fromkeys(_TUNED, "unset it unless it was measured to help; hvdtrain sends gradients in buckets of its own."),
    "LD_PRELOAD": "unset it unless it is meant: another libc, MPI or NCCL is loaded into every worker.",
}
"""With any value: what to do."""

_INTERFACES = ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def variables_on_host(facts: Facts, slots: int) -> Iterator[Finding]:
    """One finding a variable that matters; "ok" where none does. `slots` are the host's workers."""
    judged = {name: _judge(name, value, facts, slots) for name, value in facts["environment"].items()}
    for name, verdict in judged.items():
        if verdict is not None:
            yield Finding("variables", verdict[0], f"{name}={facts['environment'][name]}", verdict[1])
    if not any(judged.values()):
        yield Finding("variables", "ok", "none that changes how Horovod or NCCL run")


def _judge(name: str, value: str, facts: Facts, slots: int) -> tuple[Status, str] | None:
    if name in _SLOWER and value not in ("", "0"):
        return "warn", f"unset it unless it is meant: {_SLOWER[name]}."
    if name in _ALWAYS:
        return "warn", _ALWAYS[name]
    if name in _INTERFACES:
        return _missing_interface(value, facts)
    if name == "KERAS_BACKEND":
        return _other_backend(value, facts)
    if name in _THREADS:
        return _too_many_threads(value, facts, slots)
    if name == "NCCL_DEBUG" and value.upper() in ("INFO", "TRACE"):
        return "warn", "use NCCL_DEBUG=WARN when nothing is being searched: each worker writes hundreds of lines."
    return None


def _other_backend(value: str, facts: Facts) -> tuple[Status, str] | None:
    """Whatever is trained with TensorFlow is refused then; `facts` are about the frameworks that are to be used."""
    if value in ("", "tensorflow") or "tensorflow" not in facts["frameworks"]:
        return None
    status: Status = "fail" if len(facts["frameworks"]) == 1 else "warn"
    return status, "set it to tensorflow, or unset it: with another backend of Keras no TensorFlow task is trained."


def _missing_interface(value: str, facts: Facts) -> tuple[Status, str] | None:
    """NCCL's value may begin with = (these exactly) or ^ (all but these), and names prefixes otherwise."""
    if value.startswith("^"):
        return None
    there = [interface["name"] for interface in facts["interfaces"]]
    exact = value.startswith("=")
    wanted = [name for name in value.removeprefix("=").split(",") if name]
    matching = [name for name in wanted if any(nic == name or (not exact and nic.startswith(name)) for nic in there)]
    if wanted and not matching:
        return "fail", f"this host has no such interface: {', '.join(there)}."
    return None


def _too_many_threads(value: str, facts: Facts, slots: int) -> tuple[Status, str] | None:
    cores = facts["machine"]["cores"]["allowed"]
    if value.isdigit() and int(value) * slots > cores:
        least = max(1, cores // slots)
        return "warn", f"{slots} workers with {value} threads share {cores} cores: set {least}."
    return None


def processes_on_host(facts: Facts) -> Iterator[Finding]:
    """Jobs of hvdtrain that still run on the host."""
    processes = facts["processes"]
    if not processes:
        yield Finding("processes", "ok", "no other job of hvdtrain")
        return
    shown = ", ".join(str(process["pid"]) for process in processes[:6]) + (" ..." if len(processes) > 6 else "")
    hint = "end what was left behind, or wait: they take cores, GPU memory and network."
    fact = f"{len(processes)} process{'es' * (len(processes) > 1)} of other jobs: {shown}"
    yield Finding("processes", "warn", fact, hint)

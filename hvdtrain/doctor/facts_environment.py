"""Variables that change how a job behaves, and processes of jobs that still run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PREFIXES = ("HOROVOD_", "NCCL_", "OMP_", "MKL_", "GLOO_", "HVDTRAIN_", "UCX_", "OMPI_MCA_", "PRTE_MCA_")
_NAMES = ("CUDA_VISIBLE_DEVICES", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "LD_PRELOAD")
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
    found = []
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
            found.append({"pid": int(folder.name), "user": user, "command": command})
    return sorted(found, key=lambda process: int(process["pid"]))


def job_command(words: Sequence[str]) -> str | None:
    """`hvdtrain train` or `hvdtrain launch` if an argv is one of those, else None.

    A launcher's own command line holds the workers' one; only what Python itself runs counts.
    """
    program = Path(words[0]).name if words else ""
    if not (program.startswith("python") or program == "hvdtrain"):
        return None
    own = _own_arguments(list(words))
    if own is None:
        return None
    name = own[0] if own and not own[0].startswith("-") else "train"
    return f"hvdtrain {name}" if name in _COMMANDS and "--help" not in own else None


def _own_arguments(words: list[str]) -> list[str] | None:
    """What follows `-m hvdtrain` or the console script; None for another program."""
    for number, word in enumerate(words):
        if word == "-m":
            return words[number + 2 :] if words[number + 1 : number + 2] == ["hvdtrain"] else None
        if Path(word).name == "hvdtrain":
            return words[number + 1 :]
        if number and not word.startswith("-"):
            return None  # another script
    return None

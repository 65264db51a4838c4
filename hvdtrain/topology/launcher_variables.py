"""The variables in which launchers tell a process its rank; code that starts another job removes them."""

import fnmatch
import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

LAUNCHER_VARIABLE: Final = "HVDTRAIN_LAUNCHER"
"""Set by `hvdtrain launch`, which tells its workers their places in Horovod's variables too."""

RESTART_CAUSE_VARIABLE: Final = "HVDTRAIN_RESTART_CAUSE"  # why the launcher has started the job again; not set at first
RESTART_VARIABLE: Final = "HVDTRAIN_RESTART"  # how often the job has gone on after a loss; 0 at first
RESTART_CAUSES_VARIABLE: Final = "HVDTRAIN_RESTART_CAUSES"
"""Why, a line each, the last ones: some restarts end before they train, and leave no other trace in the run folder."""

JOB_NAME_VARIABLE: Final = "HVDTRAIN_JOB_NAME"
"""Set by `hvdtrain launch`: which job it is, the same in all its restarts and on all hosts."""

ASKED_SIZE_VARIABLE: Final = "HVDTRAIN_ASKED_SIZE"
"""How many workers the job was asked for; where hosts are lost, it may go on with fewer."""

MOST_SIZE_VARIABLE: Final = "HVDTRAIN_MOST_SIZE"  # how many workers it may have, where hosts come

RANK_VARIABLES: Final = (
    *("OMPI_*", "PMIX_*", "PMI_*", "MV2_*", "JSM_NAMESPACE_*", "SLURM_PROCID", "TORCHELASTIC_*"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK"),
    *("HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME", "HOROVOD_ELASTIC", "HOROVOD_GLOO_RENDEZVOUS_*"),
    *("HVDTRAIN_FAILURE_FILE", "HVDTRAIN_WORLD", "HVDTRAIN_WORLD_CHANNEL", RESTART_CAUSE_VARIABLE),
    *(RESTART_CAUSES_VARIABLE, JOB_NAME_VARIABLE, "HVDTRAIN_VIRTUAL_WORKER_THREADS"),
)
"""Patterns of names; what `hvdtrain.topology.readers` read, and what leads there."""


def job_name(token: str) -> str:
    """Of the job whose launcher has given its processes `token`, or that and a number of the host."""
    return hashlib.sha256(token.partition("-")[0].encode()).hexdigest()[:16]


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables without those of another launcher, whose ranks would contradict the new ones."""
    return {name: value for name, value in environ.items() if not matches(name, RANK_VARIABLES)}


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a variable's name matches one of `patterns`."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def asked_size(environ: Mapping[str, str], size: int) -> tuple[int, int]:
    """How many workers the job was asked for, and how many it may have, as hosts come; where the launcher says nothing,
    both are `size`, the number of workers that there are."""

    def number(name: str) -> int:
        text = environ.get(name, "") if LAUNCHER_VARIABLE in environ else ""
        return int(text) if text.isascii() and text.isdigit() and int(text) else size

    return number(ASKED_SIZE_VARIABLE), number(MOST_SIZE_VARIABLE)

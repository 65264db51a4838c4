"""The variables in which launchers tell a process its rank; code that starts another job removes them."""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Final

RESTART_CAUSE_VARIABLE: Final = "HVDTRAIN_RESTART_CAUSE"
"""Why the launcher has started the job again; not set at first."""

RANK_VARIABLES: Final = (
    *("OMPI_*", "PMIX_*", "PMI_*", "MV2_*", "JSM_NAMESPACE_*", "SLURM_PROCID", "TORCHELASTIC_*"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK"),
    *("HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME", "HOROVOD_ELASTIC", "HOROVOD_GLOO_RENDEZVOUS_*"),
    *("HVDTRAIN_FAILURE_FILE", "HVDTRAIN_WORLD", "HVDTRAIN_WORLD_CHANNEL", RESTART_CAUSE_VARIABLE),
)
"""Patterns of names; what `hvdtrain.topology.readers` read, and what leads there."""


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables without those of another launcher, whose ranks would contradict the new ones."""
    return {name: value for name, value in environ.items() if not matches(name, RANK_VARIABLES)}


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a variable's name matches one of `patterns`."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

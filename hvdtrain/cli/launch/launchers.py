"""The launchers of `hvdtrain launch`: ours, and those that other packages add (`hvdtrain.extensions`)."""

import importlib
from typing import Final

from hvdtrain import extensions
from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.launch.launcher_api import Launcher

BUILT_IN: Final = {
    "local": "hvdtrain.launch.local",
    "ssh": "hvdtrain.launch.ssh.launcher",
    "horovodrun": "hvdtrain.launch.horovodrun",
    "mpirun": "hvdtrain.launch.mpirun",
    "slurm": "hvdtrain.launch.slurm",
    "sagemaker": "hvdtrain.cli.launch.sagemaker",
    "kubernetes": "hvdtrain.launch.kubernetes",
}
"""Name → module whose LAUNCHER it is. Each is imported only when it is used."""


def launcher_names() -> list[str]:
    """Ours, then those of other packages."""
    added = extensions.names_in(extensions.LAUNCHERS)
    return [*BUILT_IN, *(name for name in added if name not in BUILT_IN)]


def load_launcher(name: str) -> Launcher:
    """The launcher of that name; UsageError where there is none, or a package adds something else."""
    if name in BUILT_IN:
        launcher = importlib.import_module(BUILT_IN[name]).LAUNCHER
    else:
        launcher = extensions.load(extensions.LAUNCHERS, name)
    if launcher is None:
        near = did_you_mean(name, launcher_names())
        raise UsageError(f"There is no launcher {name!r}.", "Nothing was started.", near)
    if not isinstance(launcher, Launcher):
        raise UsageError(
            f"The launcher {name!r} of another package is of type {type(launcher).__name__}.",
            "A launcher is a hvdtrain.launch.launcher_api.Launcher.",
            "see docs/extending.md, or uninstall that package.",
        )
    return launcher

"""Which MPI an mpirun belongs to: each spells its options in its own way."""

import re
import subprocess

from hvdtrain.errors import UsageError
from hvdtrain.launch.execute import run_program
from hvdtrain.launch.job_checks import require_choice

FLAVORS = {"openmpi4": "Open MPI 4", "openmpi5": "Open MPI 5", "mpich": "MPICH", "intel": "Intel MPI"}
"""Name on the command line → name for people."""

_VERSION_SECONDS = 30.0
_CONFLICT = "Its options depend on the MPI that it belongs to."
_HINT = f"say which it is with --mpi: {', '.join(FLAVORS)}."


def require_flavor(flavor: str) -> None:
    require_choice(f"The MPI is {flavor!r}.", flavor, FLAVORS, "There is none of that name here.")


def flavor_of(version_text: str) -> str | None:
    """The flavor that `mpirun --version` shows; None for an unknown one."""
    open_mpi = re.search(r"\(Open ?(?:MPI|RTE)\)\s+(\d+)\.", version_text)
    if open_mpi:
        return {4: "openmpi4", 5: "openmpi5"}.get(int(open_mpi[1]))
    if "Intel(R) MPI" in version_text:
        return "intel"
    return "mpich" if "HYDRA" in version_text or "MPICH" in version_text else None


def mpi_flavor(program: str | None) -> str:
    """The flavor of the mpirun at `program`; UsageError where there is none, or its `--version` does not tell."""
    if program is None:
        raise UsageError("There is no mpirun here.", _CONFLICT, _HINT)
    try:
        done = run_program([program, "--version"], _VERSION_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{program} does not tell its version: {error}.", _CONFLICT, _HINT) from error
    version = done.stdout + done.stderr
    flavor = flavor_of(version)
    if flavor is None:
        first = (version.strip().splitlines() or [f"exit code {done.returncode}"])[0][:120]
        raise UsageError(f"{program} is of an MPI not known here: {first!r}.", _CONFLICT, _HINT)
    return flavor


def require_same_mpi(flavor: str | None, program: str | None) -> None:
    """Raise UsageError where --mpi contradicts the mpirun that is here; it may speak for one that does not tell."""
    if flavor is None or program is None:
        return
    try:
        actual = mpi_flavor(program)
    except UsageError:
        return
    if actual != flavor:
        raise UsageError(
            f"--mpi is {flavor}, and {program} is of {actual}.",
            "Each MPI has options of its own.",
            f"leave --mpi out, or put the mpirun of {flavor} on PATH.",
        )

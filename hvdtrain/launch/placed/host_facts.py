"""What a seat tells of its host's Python, and why a host cannot run workers."""

import platform
from collections.abc import Callable
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.version import __version__


def facts_of_python() -> Callable[..., dict[str, Any]]:
    """What tells, in a seat, of the Python in which it runs, or of another interpreter there, given by its path.

    Made by a function, it is pickled by value, as seats are: so it runs on a host without hvdtrain, and can say so.
    """

    def facts_of_other(program: str) -> dict[str, Any]:
        import json
        import subprocess

        ask = (
            "import json, platform; from hvdtrain.launch.placed import seat_agent; from hvdtrain import version; "
            "print(json.dumps({'python': platform.python_version(), 'version': version.__version__}))"
        )
        found: dict[str, Any] = {"executable": program, "missing": ""}
        try:
            asked = subprocess.run([program, "-c", ask], capture_output=True, text=True, timeout=100, check=False)
            if asked.returncode == 0:
                found.update(json.loads(asked.stdout.splitlines()[-1]))
                return found
            return found | {"missing": asked.stderr.strip().rpartition("\n")[2] or f"exit code {asked.returncode}"}
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            return found | {"missing": f"{type(error).__name__}: {error}"}

    def facts(program: str | None = None) -> dict[str, Any]:
        import platform
        import sys

        if program is not None:
            return facts_of_other(program)
        found = {"python": platform.python_version(), "executable": sys.executable, "missing": "", "version": ""}
        try:
            from hvdtrain.launch.placed import seat_agent
            from hvdtrain.version import __version__

            found["version"] = __version__ if seat_agent else ""
        except Exception as error:  # told to whoever started the job, whatever it is
            found["missing"] = f"{type(error).__name__}: {error}"
        return found

    return facts


def problem_of(facts: dict[str, Any], host: str, hint: str) -> UsageError | None:
    """Why a host, such as "Ray node a", whose seat has told these facts cannot run workers. `hint`: how it gets
    hvdtrain."""
    if facts["missing"]:
        return UsageError(
            f"The {host} cannot import hvdtrain: {facts['missing'].rstrip('.')}.",
            f"Its interpreter {facts.get('executable', '')} is to start workers.",
            hint,
        )
    for what, here, there in (
        ("Python", platform.python_version().rpartition(".")[0], facts["python"].rpartition(".")[0]),
        ("hvdtrain", __version__, facts["version"]),
    ):
        if here != there:
            return UsageError(
                f"The {host} has {what} {there}, and the launcher {what} {here}.",
                "All processes of a job need the same.",
                f"install {what} {here} there, or launch from an environment with {what} {there}.",
            )
    return None

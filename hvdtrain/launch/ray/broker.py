"""The launcher's process that talks to Ray: it holds the placement groups, and an actor in them for each node.

    python -P -m hvdtrain.launch.ray.broker

It ends when its input ends, and gives actors and placement groups back then.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.launch.placed.broker import Say, first_line, run_broker
from hvdtrain.launch.ray.places import RayPlaces
from hvdtrain.launch.ray.request import Request


@contextmanager
def _places(fields: dict[str, Any], say: Say) -> Iterator[RayPlaces]:
    import ray

    request = Request(**fields)
    try:
        _connect(ray, request.address)
        with RayPlaces(ray, request, say) as places:
            yield places
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    """As `ray.init`, which starts a cluster on this machine if there is none at no address."""
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    try:
        ray.init(address or "auto", **quiet)
        return
    except ConnectionError as error:
        if address is not None:
            raise UsageError(
                f"There is no Ray cluster at {address}: {first_line(error)}.",
                "The workers are to run there.",
                "see `ray status` on one of its machines, or leave --address out.",
            ) from error
    except RuntimeError as error:
        raise UsageError(
            f"The Ray cluster refuses this process: {first_line(error)}.",
            "Launcher and cluster need the same versions of Ray and of Python.",
            "run `hvdtrain launch ray` in the environment from which the cluster was started.",
        ) from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # whoever wants to report usage says so
    ray.init("local", include_dashboard=False, **quiet)


if __name__ == "__main__":
    sys.exit(run_broker(_places))

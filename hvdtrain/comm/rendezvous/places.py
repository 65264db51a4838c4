"""The places of ranks, of which each has said on which host it runs."""

from collections import Counter
from collections.abc import Sequence

from hvdtrain.topology.topology import assign_places

Host = tuple[str, str]
"""Name and address of a rank's host. Two hosts may have one name (containers do), or share an address (loopback)."""


def places_of(hosts: Sequence[Host]) -> list[dict[str, str]]:
    """HOROVOD_RANK and so on of all ranks, where rank N runs on `hosts[N]`."""
    # Horovod groups ranks by a name, so two hosts must not share it.
    namesakes = Counter(name for name, _ in set(hosts))
    names = [name if namesakes[name] == 1 else f"{name}-{address}" for name, address in hosts]
    return [place.variables for place in assign_places(names)]

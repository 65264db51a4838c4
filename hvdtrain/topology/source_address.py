"""The address of this host that another one sees: standard library only."""

import socket

from hvdtrain.errors import HvdtrainError

LOOPBACK = "127.0.0.1"


def source_address(address: str, kind: type[HvdtrainError], conflict: str, hint: str) -> str:
    """The address that this host uses towards `address`: of a UDP socket that is connected, which sends nothing.

    Raises `kind`, with this conflict and hint, where there is no route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError as error:
            fact = f"There is no route from {socket.gethostname()} to {address}: {error.strerror or error}."
            raise kind(fact, conflict, hint) from error
        name: tuple[str, int] = probe.getsockname()
        return name[0]

"""How many workers a job of `hvdtrain launch` was asked for, and how many it may have: others than there are now."""

from collections.abc import Mapping
from typing import NamedTuple

from hvdtrain.topology.launcher_variables import ASKED_SIZE_VARIABLE, MOST_SIZE_VARIABLE
from hvdtrain.topology.readers.horovod import LAUNCHER_VARIABLE


class AskedSize(NamedTuple):
    """Attributes: `workers`: the job was asked for; `most`: it may have, as hosts come."""

    workers: int
    most: int


def asked_size(environ: Mapping[str, str], size: int) -> AskedSize:
    """As the launcher says; where it says nothing, both are `size`, the number of workers that there are."""

    def number(name: str) -> int:
        text = environ.get(name, "") if LAUNCHER_VARIABLE in environ else ""
        return int(text) if text.isascii() and text.isdigit() and int(text) else size

    return AskedSize(number(ASKED_SIZE_VARIABLE), number(MOST_SIZE_VARIABLE))

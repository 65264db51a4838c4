"""Data that `--data.on-corrupt` let pass when files were indexed: named, and not too much of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from data_sharding import Catalog
from hvdtrain.errors import UsageError

_log = logging.getLogger("hvdtrain.data")


def require_little_lost(catalogs: Sequence[Catalog], share: float) -> None:
    """The limit of `--data.max-corrupt` for records that cannot even be counted, in bytes.

    Catalogs are equal on all ranks, so all raise or none does.

    Raises:
        UsageError: more than that share of a catalog's bytes lies where no record can be found any more.
    """
    for catalog in catalogs:
        total = sum(file.size for file in catalog.files)
        if catalog.lost_bytes > share * total:
            raise UsageError(
                f"{catalog.lost_bytes:,} of {total:,} bytes lie behind damage after which no record can be found. "
                f"{catalog.damage[0].reason}",
                f"That is more than the share of {share:g} that --data.max-corrupt allows.",
                "restore the files (`hvdtrain shard index --on-corrupt mask` names all), or allow a larger share.",
            ).on_all_ranks()


def warn_of_damage(catalogs: Sequence[Catalog]) -> None:
    """Name all damage in this rank's log; rank 0's warnings go to the console too."""
    for catalog in catalogs:
        for damage in catalog.damage:
            _log.warning("damaged data: %s", damage.reason)

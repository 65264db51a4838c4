"""A file that may be beside the data: an index that another program, or an earlier job, has left there."""

import logging

from data_sharding.errors import ShardingError
from data_sharding.storage import locate_file, open_source
from data_sharding.storage.torn_maps import watching_maps

_log = logging.getLogger(__name__)


def read_if_there(path: str) -> bytes | None:
    """Its content; None where there is none, or it cannot be read. Some servers answer whatever is asked."""
    try:
        entry = locate_file(path)
        if not entry.size:
            return b""
        with watching_maps:
            return open_source(entry)[0 : entry.size]
    except ShardingError as error:  # most often: there is none
        _log.debug("nothing is beside the data: %s", error.fact)
        return None

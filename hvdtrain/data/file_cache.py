"""The folder with copies of remote data files that the options name."""

import os

from data_sharding.storage.file_cache import FileCache
from hvdtrain.config.train_config import DataConfig


def file_cache(config: DataConfig) -> FileCache | None:
    """The cache of `--data.cache-dir`, ready for use; None where it is not given.

    Each reader needs one of its own, which it closes. Raises data_sharding.CacheError: it cannot be used.
    """
    if config.cache_dir is None:
        return None
    cache = FileCache(os.path.expanduser(config.cache_dir), config.cache_bytes())
    cache.open()
    return cache

"""The first records, decoded before anything is built: what `decode` cannot do, or should not, is said at the start."""

from functools import partial

from data_sharding.loading.decoding import name_of
from hvdtrain.config.train_config import TrainConfig
from hvdtrain.data.catalog_source import CatalogSource
from hvdtrain.data.random_draws import drawn_from
from hvdtrain.errors import UsageError

_RECORDS = 2


def look_at_decode(train: CatalogSource, config: TrainConfig) -> tuple[str, ...]:
    """Decode this rank's first records; returns what has to be said before training.

    Raises:
        UsageError: with --deterministic, `decode` draws random numbers that no seed of ours reaches.
        data_sharding.ShardingError: the records cannot be read, or `decode` returns what is no tensor; and whatever
            `decode` raises.
    """
    topology = train.topology
    ids = train.plan(0).shard(topology.rank, topology.size, 0).ids[:_RECORDS]
    try:
        drawn = drawn_from(partial(train.decoded_again, 0, ids), in_threads=not config.data.processes)
    except Exception as error:
        error.add_note("while decoding the first records, before training")
        raise
    if drawn is None:
        return ()
    fact = f"The decode function {name_of(train.task.decode)} draws random numbers from {drawn}."
    conflict = (
        "What it draws depends on threads, processes and the number of workers, so that no two runs train on the same."
    )
    hint = "draw from records.random instead, which depends on the seed, the epoch and the record only (docs/data.md)."
    if config.deterministic:
        raise UsageError(fact, f"{conflict} --deterministic promises that they do.", hint)
    return (f"{fact} {conflict} HINT: {hint}",)

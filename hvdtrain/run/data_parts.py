"""The parts of a task's training records that the options ask for: some of them only, or some to validate on."""

from data_sharding import Catalog
from hvdtrain.config.train_config import DataConfig


def divided(records: Catalog, config: DataConfig) -> tuple[Catalog, Catalog | None]:
    """What to train on, and what to validate on instead of the task's own; None: the task's own.

    The parts do not depend on --seed, so that trainings with several seeds are validated on the same records. Where the
    catalog has labels, each label gets its share. Raises `ShardingError`: a part would be empty.
    """
    by_label = records.labels is not None
    if config.subset is not None and config.subset < 1:
        records, _ = records.split(config.subset, stratify=by_label)
    if config.validation_split is not None:
        return records.split(1 - config.validation_split, stratify=by_label)
    if config.folds is not None and config.fold is not None:
        return records.folds(config.folds, config.fold, stratify=by_label)
    return records, None

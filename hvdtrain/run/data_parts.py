"""The parts of a task's training records that the options ask for: some of them only, or some to validate on."""

from data_sharding import Catalog, PlanError
from hvdtrain.config.train_config import DataConfig
from hvdtrain.errors import UsageError


def divided(records: Catalog, config: DataConfig) -> tuple[Catalog, Catalog | None]:
    """What to train on, and what to validate on instead of the task's own; None: the task's own.

    The parts do not depend on --seed, so that trainings with several seeds are validated on the same records. Where the
    catalog has labels, each label gets its share.

    Raises UsageError: a part would be empty, or an epoch draws records more or less than once; PlanError: there are no
    such folds.
    """
    _require_each_once(records, config)
    by_label = records.labels is not None
    if config.subset is not None and config.subset < 1:
        records, _ = _split(records, config.subset, f"--data.subset {config.subset:g}")
    if config.validation_split is not None:
        return _split(records, 1 - config.validation_split, f"--data.validation-split {config.validation_split:g}")
    if config.folds is not None and config.fold is not None:
        return records.folds(config.folds, config.fold, stratify=by_label)
    return records, None


def _split(records: Catalog, fraction: float, option: str) -> tuple[Catalog, Catalog]:
    try:
        return records.split(fraction, stratify=records.labels is not None)
    except PlanError as error:
        raise UsageError(
            f"{option} of {len(records):,} records leaves one part empty.",
            "A part without a record cannot be planned.",
            "choose a share that is at least one record, and not all of them.",
        ) from error


def _require_each_once(records: Catalog, config: DataConfig) -> None:
    given = [name for name in ("subset", "validation_split", "folds") if getattr(config, name) not in (None, 1.0)]
    if given and records.draws is not None:
        raise UsageError(
            f"--data.{given[0].replace('_', '-')} was given, and the task draws its records by a rule: it mixes, "
            "repeats or weights them.",
            "The option divides records of which an epoch draws each one once.",
            "split in open_data, and mix the part to train on; or leave the option out.",
        )

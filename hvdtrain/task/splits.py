"""Which records a task trains on, and which it is validated on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data_sharding import Catalog
from hvdtrain.errors import UsageError
from hvdtrain.set_names import UNNAMED, require_set_name

Validation = Catalog | Mapping[str, Catalog] | None
"""Records to validate on: one set, or several by name, or none."""


@dataclass(frozen=True)
class Splits:
    """The records to train on, and those to validate on after each epoch.

    Attributes:
        train: the catalog to train on.
        validation: a catalog; or name → catalog, where several sets are measured, the first of which decides about the
            best checkpoint unless --best-metric names another; or None: no validation.

    Raises:
        UsageError: they are not catalogs, or a name is refused by `require_set_name`.
    """

    train: Catalog
    validation: Validation = None

    def __post_init__(self) -> None:
        require_catalog(self.train, "The argument train of Splits")
        validation_sets(self.validation, "The argument validation of Splits")


def validation_sets(records: Any, where: str) -> dict[str, Catalog]:
    """Name → catalog; the name of an only set that has none is UNNAMED. Raises UsageError: they are something else;
    `where` says what has given them."""
    if records is None:
        return {}
    named = isinstance(records, Mapping)
    sets = dict(records) if named else {UNNAMED: records}
    for name, catalog in sets.items():
        if named:
            require_set_name(name, where)
        require_catalog(catalog, f"{where} for {name!r}" if named else where)
        if catalog.draws is not None:
            raise UsageError(
                f"{where} is a {catalog.draws.describe()['rule']} catalog.",
                "What is validated is measured once for each record.",
                "give the catalog without mix(), repeat() or sample(); Catalog.concat(a, b) joins several.",
            )
    return sets


def require_catalog(records: Any, where: str) -> None:
    """Raise `UsageError` unless `records` is a catalog."""
    if not isinstance(records, Catalog):
        raise UsageError(
            f"{where} is an object of type {type(records).__name__}.",
            "Records are given as a catalog, which says where each of them is.",
            "give data.catalog(NAMES) for files, and data.dataset(OBJECT) for a Dataset, arrays or a table.",
        )

"""The proof of which records were used, where it can be read in little time and memory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from data_sharding.errors import ShardingError
from hvdtrain.audit.audit_summary import CoverageReport, read_coverage
from hvdtrain.audit.ledger import CATALOG, LEDGER
from hvdtrain.errors import HvdtrainError
from hvdtrain.history.lines import JsonLines, size_of
from hvdtrain.history.reading import number

_MOST_RECORDS: Final = 2 * 10**9  # of all epochs together: a bit each
_MOST_BYTES: Final = 2**27  # of the ledger and of the catalog


@dataclass(frozen=True)
class Proof:
    """Attributes:
    summary: what was used; None where it was not read.
    reason: why it was not, in a sentence or two.
    """

    summary: CoverageReport | None
    reason: str = ""


def read_proof(run: Path) -> Proof:
    """Replay the audit of the run in the folder `run`; never raises."""
    folder = run / "audit"
    try:
        if not folder.is_dir():
            return Proof(None, "The run holds no audit: nothing says which records its training used.")
        if _is_large(folder):
            return Proof(None, f"The account of records is too large to be read here: `hvdtrain shard verify {run}`.")
        return Proof(read_coverage(run))
    except (HvdtrainError, ShardingError) as error:
        return Proof(None, f"{error.fact} {error.conflict}")
    except Exception as error:  # files that anybody may have written; the rest of the page can still be shown
        return Proof(None, f"The audit cannot be read: {type(error).__name__}: {error}")


def _is_large(folder: Path) -> bool:
    if max(size_of(folder / LEDGER), size_of(folder / CATALOG)) > _MOST_BYTES:
        return True
    records, per_epoch, end = 0.0, 1.0, 0.0
    for line in JsonLines(folder / LEDGER):
        records = max(records, number(line, "records") or 0.0)
        per_epoch = number(line, "steps_per_epoch") or per_epoch
        end = max(end, number(line, "end") or 0.0)
    return records * (end / per_epoch + 1) > _MOST_RECORDS

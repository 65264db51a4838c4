"""What an epoch was planned to draw more or less often than once is compared with what was used."""

from __future__ import annotations

import numpy as np
import pytest

from data_sharding import CoverageAudit
from hvdtrain.audit.audit_summary import EpochCoverage, UnlikeUses

PLANNED = np.array([2, 0, 1, 3, 1])


def epoch(used: list[int], steps: int = 4, damaged: tuple[int, ...] = ()) -> EpochCoverage:
    audit = CoverageAudit.from_array(np.array(used, np.int32))
    return EpochCoverage(1, audit, steps, 4, (), (2,), damaged, UnlikeUses.of(audit, PLANNED, damaged))


@pytest.mark.parametrize(
    ("used", "steps", "too_often", "missing", "exact"),
    [
        ([2, 0, 1, 3, 1], 4, [], [], True),
        ([2, 0, 1, 2, 1], 4, [], [3], False),
        ([2, 0, 1, 2, 1], 3, [], [3], True),  # the epoch goes on
        ([2, 1, 1, 3, 1], 3, [1], [], False),
        ([3, 0, 0, 3, 1], 4, [0], [2], False),
    ],
)
def test_the_numbers_of_uses_decide(
    used: list[int], steps: int, too_often: list[int], missing: list[int], exact: bool
) -> None:
    found = epoch(used, steps)
    assert (found.too_often.tolist(), found.missing.tolist(), found.exact) == (too_often, missing, exact)
    assert found.used_once == np.minimum(used, PLANNED).sum()


def test_damaged_records_are_not_expected() -> None:
    assert epoch([2, 0, 1, 0, 1], damaged=(3,)).exact

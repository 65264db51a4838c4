"""How long a process may take to end is asked for before its work; how it ends, tests/parallel shows."""

from __future__ import annotations

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.exit_watch import completed


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf", ""])
def test_a_time_that_is_none_is_refused_before_the_work(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDTRAIN_EXIT_TIMEOUT", text)
    with pytest.raises(UsageError, match="It is the number of seconds") as refused:
        completed(0, lambda: "rank 0", lambda: pytest.fail("the work was begun"))
    assert refused.value.hint == "leave it out for 1800."

"""Compiled steps: one graph for each layout of a batch, and collectives of one graph at the same time."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import Forker

SCRIPT = Path(__file__).parents[2] / "support" / "scripts" / "keras_compiled.py"


@pytest.mark.parametrize(
    "law",
    [
        "each_layout_is_traced_once_and_has_its_own_result",
        "one_graph_serves_any_number_of_rows_in_their_order",
        "an_error_says_where_its_operation_was_made",
        "operations_that_do_not_need_each_other_wait_at_the_same_time",
        "numbers_of_a_step_come_back_exactly",
        "sums_of_large_tensors_add_their_terms_in_their_order",
    ],
)
def test_it_holds(law: str, keras_forker: Forker, tmp_path: Path) -> None:
    done = keras_forker.run_python([str(SCRIPT), law], tmp_path)
    assert done.code == 0, done

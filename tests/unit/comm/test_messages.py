"""JSON over collectives, and agreement on what one rank found."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ranks import ThreadCommunicator, all_well, run_on_ranks

from data_sharding import MissingDataError
from hvdtrain.comm.communicator import SerialCommunicator
from hvdtrain.comm.messages import agree, broadcast_json, gather_bytes, gather_json, is_same_on_all, ranks_where
from hvdtrain.errors import DivergenceError, HvdtrainError, PeerError, UsageError
from hvdtrain.topology import Topology

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)


@given(values=st.lists(json_values, min_size=1, max_size=4))
@settings(max_examples=30)
def test_gather_gives_every_rank_everybodys_value(values: list[Any]) -> None:
    gathered = all_well(run_on_ranks(len(values), lambda comm: gather_json(comm, values[comm.topology.rank], "x")))
    assert gathered == [values] * len(values)


@given(
    values=st.lists(json_values, min_size=1, max_size=2), of_ranks=st.lists(st.integers(0, 1), min_size=1, max_size=4)
)
@settings(max_examples=30)
def test_all_ranks_know_whether_their_values_are_the_same(values: list[Any], of_ranks: list[int]) -> None:
    chosen = [values[number % len(values)] for number in of_ranks]
    answers = all_well(run_on_ranks(len(chosen), lambda comm: is_same_on_all(comm, chosen[comm.topology.rank], "x")))
    texts = {json.dumps(value) for value in chosen}
    assert answers == [len(texts) == 1] * len(chosen)


@given(values=st.lists(st.binary(max_size=20), min_size=1, max_size=4))
@settings(max_examples=30)
def test_gather_bytes_of_any_length(values: list[bytes]) -> None:
    gathered = all_well(run_on_ranks(len(values), lambda comm: gather_bytes(comm, values[comm.topology.rank], "x")))
    assert gathered == [values] * len(values)


@given(value=json_values, size=st.integers(1, 4))
@settings(max_examples=30)
def test_broadcast_gives_every_rank_rank_0s_value(value: Any, size: int) -> None:
    def work(comm: ThreadCommunicator) -> Any:
        return broadcast_json(comm, value if comm.topology.is_root else ["ignored"] * 9, "x")

    assert all_well(run_on_ranks(size, work)) == [value] * size


def test_alone() -> None:
    comm = SerialCommunicator(Topology.single())
    assert gather_json(comm, [1, "ä"], "x") == [[1, "ä"]]
    assert broadcast_json(comm, None, "x") is None
    assert agree(comm, lambda: 5, "x") == 5


def refusing(ranks: set[int], error: Exception) -> Any:
    def work(comm: ThreadCommunicator) -> Any:
        def attempt() -> int:
            if comm.topology.rank in ranks:
                raise error
            return comm.topology.rank

        return agree(comm, attempt, "x")

    return work


def test_all_who_agree_get_their_own_result() -> None:
    assert all_well(run_on_ranks(3, refusing(set(), UsageError("", "", "")))) == [0, 1, 2]


@pytest.mark.parametrize(
    ("ranks", "fact"),
    [
        ({0, 1, 2}, "No data."),
        ({1}, "On rank 1: No data."),
        ({2, 1}, "On ranks 1, 2 (the first one's words): No data."),
    ],
)
def test_one_refusal_is_everybodys(ranks: set[int], fact: str) -> None:
    for error in run_on_ranks(3, refusing(ranks, UsageError("No data.", "Why.", "do it."))):
        assert isinstance(error, UsageError)
        assert (error.fact, error.conflict, error.hint) == (fact, "Why.", "do it.")
        assert (error.joint, error.exit_code) == (True, 2)


@pytest.mark.parametrize("ranks", [set(range(61)), {0, 29, 30, 59, 60}, set(), set(range(1, 61))])
def test_ranks_are_found_by_a_sum(ranks: set[int]) -> None:
    """Of 61 ranks, so that their bits need several numbers, of which the last one has a single bit."""
    found = run_on_ranks(61, lambda comm: ranks_where(comm, comm.topology.rank in ranks, "x"))
    assert found == [sorted(ranks)] * 61


def test_a_message_names_some_of_many_ranks() -> None:
    error = run_on_ranks(30, refusing(set(range(5, 30)), UsageError("No data.", "Why.", "do it.")))[0]
    assert isinstance(error, UsageError)
    assert error.fact.startswith("On ranks 5, 6, 7, ")
    assert error.fact.endswith(", 20, … (the first one's words): No data.")


def test_a_data_error_is_bad_usage() -> None:
    for error in run_on_ranks(2, refusing({1}, MissingDataError("No data.", "Why.", "do it."))):
        assert isinstance(error, UsageError)
        assert error.fact == "On rank 1: No data."


def test_a_failure_keeps_its_exit_code() -> None:
    for error in run_on_ranks(2, refusing({0}, DivergenceError("Other weights.", "Why.", "do it."))):
        assert isinstance(error, HvdtrainError)
        assert (error.exit_code, error.joint) == (1, True)


def test_the_first_refusing_ranks_words_win() -> None:
    def work(comm: ThreadCommunicator) -> None:
        def attempt() -> None:
            raise UsageError(f"Fact of {comm.topology.rank}.", "Why.", "do it.")

        agree(comm, attempt, "x")

    assert {str(error) for error in run_on_ranks(3, work)} == {"Fact of 0. Why.\nHINT: do it."}


@pytest.mark.parametrize("error", [KeyError("a defect"), PeerError("Gone.", "Why.", "see there.")])
def test_a_defect_leaves_at_once_and_ends_the_others(error: Exception) -> None:
    results = run_on_ranks(3, refusing({1}, error))
    assert results[1] is error
    assert all(isinstance(result, PeerError) for result in (results[0], results[2]))

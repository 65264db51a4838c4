"""A sum along the tree depends on its terms only, not on who adds which of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.adapters.tree_exchange import sent_share
from hvdtrain.algorithms.summation_tree import is_one_after_the_other, subtrees, sum_of_subtrees
from hvdtrain.topology.virtual_workers import VirtualWorkers


def joined(left: str, right: str) -> str:
    """Not associative, as floating-point sums: it shows which parts were joined."""
    return f"({left}{right})"


def whole(count: int) -> str:
    return sum_of_subtrees(((range(i, i + 1), f"{i}.") for i in range(count)), count, joined)


def test_low_bits_come_first() -> None:
    assert whole(1) == "0."
    assert whole(4) == "((0.1.)(2.3.))"
    assert whole(5) == "(((0.1.)(2.3.))4.)"
    assert whole(7) == "(((0.1.)(2.3.))((4.5.)6.))"


@given(st.integers(1, 70).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count))))
def test_any_number_of_workers_adds_in_the_same_order(counts: tuple[int, int]) -> None:
    count, size = counts
    parts = []
    for rank in range(size):
        own = VirtualWorkers(count, rank, size, count).own
        for part in subtrees(own, count):
            terms = [(range(i - part.start, i - part.start + 1), f"{i}.") for i in part]
            parts.append((part, sum_of_subtrees(terms, len(part), joined)))
    assert [i for part, _ in parts for i in part] == list(range(count))
    assert sum_of_subtrees(parts, count, joined) == whole(count)


@given(st.integers(1, 512), st.integers(0, 100), st.integers(1, 100))
def test_a_worker_sends_few_parts(count: int, first: int, length: int) -> None:
    parts = subtrees(range(min(first, count - 1), min(first + length, count)), count)
    assert len(parts) <= 2 * max(1, count.bit_length())


def test_workers_of_a_power_of_two_send_one_part_each() -> None:
    for size in (1, 2, 4, 8):
        assert all(len(subtrees(VirtualWorkers(8, r, size, 8).own, 8)) == 1 for r in range(size))


@given(st.integers(0, 9).flatmap(lambda bits: st.tuples(st.just(2**bits), st.integers(0, bits))))
def test_powers_of_two_send_as_many_bytes_as_a_ring(counts: tuple[int, int]) -> None:
    count, size = counts[0], 2 ** counts[1]
    assert sent_share(VirtualWorkers(count, 0, size, count), adds_in_order=False) == 2 * (size - 1) / size


def test_other_numbers_send_some_more() -> None:
    assert sent_share(VirtualWorkers(3, 0, 3, 3), adds_in_order=True) == pytest.approx(4 / 3)
    assert sent_share(VirtualWorkers(8, 0, 3, 8), adds_in_order=True) == pytest.approx(2)  # two parts of the tree
    assert sent_share(VirtualWorkers(6, 0, 2, 6), adds_in_order=False) == pytest.approx(1.5)


def test_two_parts_and_some_of_three_are_added_one_after_the_other() -> None:
    assert is_one_after_the_other([range(0, 4), range(4, 7)], 7)
    assert is_one_after_the_other([range(0, 1), range(1, 2), range(2, 4)], 4)
    assert not is_one_after_the_other([range(0, 2), range(2, 3), range(3, 4)], 4)
    assert not is_one_after_the_other([range(i, i + 1) for i in range(4)], 4)


def test_slots_are_those_of_each_virtual_worker() -> None:
    """66 records for 8: the same cuts, whoever has them."""
    begins = [v * 66 // 8 for v in range(9)]
    for size in (1, 2, 3, 5, 8):
        cuts = []
        for rank in range(size):
            workers = VirtualWorkers(8, rank, size, 66)
            first = begins[workers.own.start]
            cuts += [(first + part.start, first + part.stop) for part in workers.slots]
        assert cuts == list(zip(begins, begins[1:], strict=False))

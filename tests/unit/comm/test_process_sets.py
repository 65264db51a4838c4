"""`--process-sets`: what is written is what is meant, and every rank is in exactly one set."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.comm.process_sets import form_process_sets
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.config.value_syntax import Sets, require_readable, resolve
from hvdtrain.errors import UsageError
from hvdtrain.topology import Topology

pytestmark = pytest.mark.timeout(60)


@st.composite
def partitions(draw: st.DrawFn) -> Sets:
    """Sets of 1 to 12 ranks, in any order."""
    size = draw(st.integers(1, 12))
    of_rank = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    sets = [tuple(rank for rank in range(size) if of_rank[rank] == number) for number in set(of_rank)]
    return tuple(draw(st.permutations(sets)))


def written(ranks: tuple[int, ...], with_ranges: bool) -> str:
    """`ranks`, which rise, as one writes them."""
    runs: list[list[int]] = []
    for rank in ranks:
        if with_ranges and runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return "+".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


@given(sets=partitions(), with_ranges=st.booleans())
def test_what_is_written_is_what_is_meant(sets: Sets, with_ranges: bool) -> None:
    size = sum(map(len, sets))
    text = ",".join(written(ranks, with_ranges) for ranks in sets)
    require_readable(text)
    assert resolve(text, [0] * size) == sets


@given(nodes=st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_node_means_the_ranks_that_say_the_same_node(nodes: list[int]) -> None:
    sets = resolve("node", nodes)
    assert sorted(rank for ranks in sets for rank in ranks) == list(range(len(nodes)))
    for ranks in sets:
        assert list(ranks) == [rank for rank, node in enumerate(nodes) if node == nodes[ranks[0]]]


@given(sets=partitions(), data=st.data())
def test_a_rank_too_few_too_many_or_twice_is_refused_with_the_size(sets: Sets, data: st.DataObject) -> None:
    size = sum(map(len, sets))
    text = ",".join(written(ranks, with_ranges=False) for ranks in sets)
    rank = data.draw(st.integers(0, size - 1))
    for wrong, words in (
        (f"{text},{rank}", f"rank {rank} twice"),
        (f"{text}+{size}", f"names rank {size}."),
        (f"{text},{size + 5}-{size + 7}", f"names rank {size + 7}."),
    ):
        with pytest.raises(UsageError) as refused:
            resolve(wrong, [0] * size)
        assert words in str(refused.value)
        assert f"{size} workers" in str(refused.value)
    with pytest.raises(UsageError, match=rf"names rank {size} nowhere.*\n?.*"):
        resolve(text, [0] * (size + 1))


def test_a_huge_range_is_refused_before_it_is_made() -> None:
    with pytest.raises(UsageError, match="names rank 9999999"):
        resolve("0-9999999", [0, 0])
    with pytest.raises(UsageError, match="ends before it begins"):
        resolve("1-0", [0, 0])


@pytest.mark.parametrize(
    "text", ["", "nodes", "0-3;4-7", "0 1", "0-3,", ",0", "0--3", "0-1-2", "-1", "0+", "a-b", "0.5", "²", "0-3, 4-7"]
)
def test_other_words_are_refused_as_flags(text: str) -> None:
    with pytest.raises(UsageError, match="0-3,4-7") as refused:
        TrainingOptions(sync_every=2, process_sets=text)
    assert repr(text) in str(refused.value)


node_of_thread: dict[str, str] = {}


class Ranks:
    """A `Communicator` of threads that can gather, and Horovod's module, which notes the sets that each rank forms."""

    def __init__(self, nodes: list[str], local_sizes: list[int]) -> None:
        self.nodes, self.local_sizes = nodes, local_sizes
        self.barrier = threading.Barrier(len(nodes), timeout=60)
        self.sent: list[Any] = [None] * len(nodes)
        self.formed: list[list[list[int]]] = [[] for _ in nodes]

    def form(self, texts: list[str]) -> list[BaseException | None]:
        """What each rank raises."""
        raised: list[BaseException | None] = [None] * len(self.nodes)

        def run(rank: int) -> None:
            try:
                form_process_sets(_Rank(self, rank), self, texts[rank])  # type: ignore[arg-type]
            except UsageError as error:
                raised[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(self.nodes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return raised

    def add_process_set(self, ranks: list[int]) -> None:
        self.formed[int(threading.current_thread().name)].append(ranks)


class _Rank:
    def __init__(self, ranks: Ranks, rank: int) -> None:
        self.ranks, self.rank = ranks, rank
        self.topology = Topology(rank, len(ranks.nodes), 0, ranks.local_sizes[rank])
        threading.current_thread().name = str(rank)
        node_of_thread[str(rank)] = ranks.nodes[rank]

    def allgather(self, array: Any, name: str) -> Any:  # noqa: ARG002
        self.ranks.sent[self.rank] = array
        self.ranks.barrier.wait()
        joined = np.concatenate(self.ranks.sent)
        self.ranks.barrier.wait()
        return joined


@pytest.fixture(autouse=True)
def _one_rank_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOROVOD_HOSTNAME", "SLURMD_NODENAME", "SM_CURRENT_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: node_of_thread[threading.current_thread().name])


def test_every_rank_forms_the_same_sets_in_the_same_order() -> None:
    ranks = Ranks(["b", "a", "b"], [2, 1, 2])
    assert ranks.form(["node"] * 3) == [None] * 3
    assert ranks.formed == [[[0, 2], [1]]] * 3


def test_a_set_of_all_ranks_is_horovods_own() -> None:
    ranks = Ranks(["a", "a"], [2, 2])
    assert ranks.form(["node"] * 2) == [None] * 2
    assert ranks.formed == [[], []]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["0-1", "0,1"], "Rank 1 has --process-sets 0,1"),
        (["0-3", "0-3"], "There are 2 workers"),
        (["node", "node"], "2 workers say that they run on localhost, and one of them that 1 do"),
    ],
)
def test_a_refusal_is_everybodys(texts: list[str], words: str) -> None:
    ranks = Ranks(["localhost", "localhost"], [1, 1])
    raised = ranks.form(texts)
    assert [str(error) for error in raised] == [str(raised[0])] * 2
    assert words in str(raised[0])
    assert all(isinstance(error, UsageError) and error.joint for error in raised)
    assert ranks.formed == [[], []]

"""Slurm's short forms for nodes and tasks per node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.errors import UsageError
from hvdtrain.topology.nodelist import LIMIT, expand_node_list, expand_tasks_per_node


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ("n1",)),
        ("n[1-3,07],m2", ("n1", "n2", "n3", "n07", "m2")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("n[9-11]", ("n9", "n10", "n11")),
        ("gpu-a[1,3]-ib", ("gpu-a1-ib", "gpu-a3-ib")),
        ("r[1-2]n[01-02]", ("r1n01", "r1n02", "r2n01", "r2n02")),
        ("a.example.org,b.example.org", ("a.example.org", "b.example.org")),
        ("n[5]", ("n5",)),
    ],
)
def test_node_lists(text: str, names: tuple[str, ...]) -> None:
    assert expand_node_list(text) == names


@pytest.mark.parametrize(
    "text",
    ["", ",", "n1,", ",n1", "n[1-3", "n1-3]", "n[]", "n[3-1]", "n[1-]", "n[a-b]", "n[1,,2]", "n 1", "n[1[2]]", "n[-1]"],
)
def test_what_is_no_node_list_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        expand_node_list(text, "SLURM_STEP_NODELIST")
    assert caught.value.fact == f"SLURM_STEP_NODELIST is {text!r}."
    assert caught.value.conflict == "This is not a valid node list such as n[1-3,07],m2."


@pytest.mark.parametrize("text", ["n[0-65536]", "n[1-999999999]", "r[1-999]n[1-999]", "a[1-60000],b[1-60000]"])
def test_a_short_text_cannot_ask_for_endless_names(text: str) -> None:
    with pytest.raises(UsageError, match=f"more than {LIMIT} nodes"):
        expand_node_list(text)


def test_the_limit_itself_is_allowed() -> None:
    assert len(expand_node_list(f"n[1-{LIMIT}]")) == LIMIT


stems = st.text("abcdefgxyz-.", min_size=1, max_size=6)
groups = st.tuples(stems, st.integers(0, 1100), st.integers(0, 15), st.integers(1, 5), st.sampled_from(["", "-ib"]))


@given(parts=st.lists(groups, min_size=1, max_size=5))
def test_what_is_compressed_expands_to_the_same_names(parts: list[tuple[str, int, int, int, str]]) -> None:
    items: list[str] = []
    names: list[str] = []
    for stem, first, further, width, end in parts:
        numbers = [f"{number:0{width}d}" for number in range(first, first + further + 1)]
        names.extend(f"{stem}{number}{end}" for number in numbers)
        items.append(f"{stem}[{numbers[0]}-{numbers[-1]}]{end}" if further else f"{stem}{numbers[0]}{end}")
    assert expand_node_list(",".join(items)) == tuple(names)
    assert expand_node_list(",".join(names)) == tuple(names)


@pytest.mark.parametrize(
    ("text", "counts"), [("3", (3,)), ("4(x2),3", (4, 4, 3)), ("1(x1)", (1,)), ("2,1(x3)", (2, 1, 1, 1))]
)
def test_tasks_per_node(text: str, counts: tuple[int, ...]) -> None:
    assert expand_tasks_per_node(text) == counts


@pytest.mark.parametrize("text", ["", "x", "4(2)", "4(x)", "4(x2),", "-1", "4 (x2)", "4(x2", "٣"])
def test_what_are_no_tasks_per_node_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"list of tasks per node such as 4\(x2\),3"):
        expand_tasks_per_node(text)


def test_endless_tasks_per_node_are_refused() -> None:
    for text in ("1(x99999999)", "1(x40000),1(x40000)"):
        with pytest.raises(UsageError, match=f"more than {LIMIT} nodes"):
            expand_tasks_per_node(text)


@given(runs=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 20)), min_size=1, max_size=6))
def test_runs_of_tasks_expand_to_the_same_counts(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}(x{times})" if times > 1 else f"{count}" for count, times in runs)
    assert expand_tasks_per_node(text) == tuple(count for count, times in runs for _ in range(times))

"""Catalogs of objects: their items become arrays, and what is random in them belongs to the item and the epoch."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from array_record.python.array_record_data_source import ArrayRecordDataSource
from array_record.python.array_record_module import ArrayRecordWriter
from numpy.typing import NDArray

from data_sharding import (
    BadRecord,
    Catalog,
    ChangedDataError,
    MissingDataError,
    PlanError,
    RecordReader,
    SampleRandom,
    ShardingError,
)
from data_sharding.loading.decode_processes import DecodeProcesses
from data_sharding.loading.decoding import read_and_decode

Pair = namedtuple("Pair", ["image", "label"])  # noqa: PYI024  as people write it


@dataclasses.dataclass
class Sample:
    image: int
    box: dict[str, int]


IDS = np.array([4, 0, 4])


class Squares(torch.utils.data.Dataset[Any]):
    """Item i is (i², i); with noise from three generators if asked for."""

    def __init__(self, count: int = 6, noisy: bool = False) -> None:
        self.count, self.noisy, self.targets = count, noisy, [i % 2 for i in range(count)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        noise = torch.rand(3) + random.random() + np.random.rand() if self.noisy else torch.zeros(3)  # noqa: NPY002
        return number**2 + noise, number


class Broken(Squares):
    """Item 4 cannot be read."""

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        if number == 4:
            raise ValueError("unreadable")
        return super().__getitem__(number)


class Together(Squares):
    """Several items cannot be read at once."""

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        if len(numbers) > 1:
            raise ValueError("unreadable")
        return [self[number] for number in numbers]


class Refusing(list[Any]):
    """Item 0 is refused."""

    def __getitem__(self, number: Any) -> Any:
        if number == 0:
            raise BadRecord("it is the first")
        return super().__getitem__(number)


class Asked(list[Any]):
    """A list that notes which items are asked for at once."""

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        self.asked = [*getattr(self, "asked", []), numbers]
        return [self[number] for number in numbers]


class OnlyTogether:
    """Has no `[]`, and refuses item 2."""

    def __len__(self) -> int:
        return 6

    def __getitems__(self, numbers: list[int]) -> list[dict[str, int]]:
        if 2 in numbers:
            raise BadRecord("it is the third")
        return [{"x": number} for number in numbers]


class Fewer(Squares):
    """Leaves items out where several are asked for, or gives their columns."""

    def __init__(self, columns: bool = False) -> None:
        super().__init__()
        self.columns = columns

    def __getitems__(self, numbers: list[int]) -> Any:
        return {"x": numbers} if self.columns else [0]


def arrays_of(catalog: Catalog, ids: NDArray[np.int64] = IDS, epoch: int | None = None) -> dict[str, NDArray[Any]]:
    with RecordReader(catalog) as reader:
        records = reader.load(ids, None if epoch is None else SampleRandom(7, epoch, ids))
    assert records.collate is not None
    return records.collate(records.payloads)


def decode(records: Any) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = records.collate(records.payloads)
    return arrays


TENSORS = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12).reshape(6, 2, 1))
PAIRS = [[[n, 1], [2, 3]] for n in IDS.tolist()]
TABLE = {"x": np.arange(12, dtype=np.int16).reshape(6, 2), "y": [0.5, 1, 2, 3, 4, 5]}


@pytest.mark.parametrize(
    ("dataset", "options", "expected"),
    [
        (Squares(), {"names": ("x", "y")}, {"x": [[16.0] * 3, [0.0] * 3, [16.0] * 3], "y": [4, 0, 4]}),
        (
            [Pair(n, {"a": n, "b": [n, n]}) for n in range(6)],
            {},
            {"image": [4, 0, 4], "label.b": [[4, 4], [0, 0], [4, 4]]},
        ),
        (Asked({"x": np.float16(n), "b": n > 2} for n in range(6)), {}, {"x": [4, 0, 4], "b": [True, False, True]}),
        (range(6), {}, {"input": [4, 0, 4]}),
        (OnlyTogether(), {}, {"x": [4, 0, 4]}),
        ([0.25 * n for n in range(6)], {"names": "x"}, {"x": [1.0, 0.0, 1.0]}),
        (TABLE, {}, {"x": [[8, 9], [0, 1], [8, 9]], "y": [4, 0.5, 4]}),
        (pa.table({"x": range(6)}), {}, {"x": [4, 0, 4]}),
        (
            pl.DataFrame({"x": range(6), "y": [[n, n] for n in range(6)]}),
            {},
            {"x": [4, 0, 4], "y": [[4, 4], [0, 0], [4, 4]]},
        ),
        (pa.RecordBatch.from_pydict({"x": range(6), "y": ["ab"] * 6}), {}, {"x": [4, 0, 4], "y": ["ab"] * 3}),
        (pa.table({"x": [{"a": {"b": n}} for n in range(6)]}), {}, {"x.a.b": [4, 0, 4]}),
        (pa.table({"x": TENSORS}), {}, {"x": [[[8], [9]], [[0], [1]], [[8], [9]]]}),
        (pa.chunked_array([[0, 1], [2, 3, 4]]), {}, {"input": [4, 0, 4]}),
        ([np.array([np.array([n, 1]), np.array([2, 3])], object) for n in range(6)], {}, {"input": PAIRS}),
        (pl.DataFrame({"x": [{"a": {"b": n}, "c": 0} for n in range(6)]}), {}, {"x.a.b": [4, 0, 4], "x.c": [0] * 3}),
        (np.array([(n, n / 2) for n in range(6)], "i8,f4"), {"labels": "f0"}, {"f0": [4, 0, 4], "f1": [2, 0, 2]}),
        ([Sample(n, {"left": -n}) for n in range(6)], {}, {"image": [4, 0, 4], "box.left": [-4, 0, -4]}),
        (torch.utils.data.TensorDataset(torch.arange(6)), {"names": "x"}, {"x": [4, 0, 4]}),
        ([[n, n + 1] for n in range(6)], {"names": "x"}, {"x": [[4, 5], [0, 1], [4, 5]]}),
        ([[n] for n in range(6)], {"names": "x"}, {"x": [[4], [0], [4]]}),
        ({"x": [[n] * (1 + n % 2) for n in range(6)]}, {}, {"x": [[4], [0], [4]]}),
        ({"x": [[n] * n for n in range(6)]}, {"pad": {"x": -1}}, {"x": [[4] * 4, [-1] * 4, [4] * 4]}),
        (["ab"] * 6, {"collate_fn": lambda items: {"n": torch.tensor([len(i) for i in items])}}, {"n": [2, 2, 2]}),
    ],
)
def test_items_become_arrays(dataset: Any, options: dict[str, Any], expected: dict[str, Any]) -> None:
    found = arrays_of(Catalog.of(dataset, **options))
    for name, values in expected.items():
        assert found[name].tolist() == values


def test_tuples_in_tuples_have_names_of_their_own() -> None:
    items = [(n, (np.full(2, n), "box"), {"left": n}) for n in range(6)]
    found = arrays_of(Catalog.of(items, names=("image", ("box", "kind"), "part")))
    assert list(found) == ["image", "box", "kind", "part.left"]
    assert (found["box"].shape, found["kind"].tolist()) == ((3, 2), ["box"] * 3)
    for names, fact in (
        (("a", ("b", "c"), ("d", "e")), "A part of an item has 1 part"),
        (("a", ("b", "a"), "d"), "3 parts"),
    ):
        with pytest.raises(PlanError, match=fact):
            Catalog.of(items, names=names).format.require_items()  # type: ignore[attr-defined]


def test_numbers_have_the_types_that_models_take() -> None:
    found = arrays_of(
        Catalog.of([(1.5, 2, np.float64(3), np.zeros(2, np.uint8)) for _ in range(5)], names=tuple("abcd"))
    )
    assert [str(array.dtype) for array in found.values()] == ["float32", "int64", "float64", "uint8"]
    columns = arrays_of(Catalog.of({"a": [1.5] * 6, "b": np.ones(6), "c": torch.ones(6, dtype=torch.bfloat16)}))
    assert [str(array.dtype) for array in columns.values()] == ["float32", "float64", "float32"]


@pytest.mark.parametrize(
    ("first", "other", "expected"), [(1.5, 2, "float32"), (True, False, "bool"), (1, True, "int64")]
)
def test_the_type_of_a_batch_does_not_depend_on_its_items(first: Any, other: Any, expected: str) -> None:
    catalog = Catalog.of([first, *[other] * 5], names="x")
    assert {str(arrays_of(catalog, np.array(ids))["x"].dtype) for ids in ([0], [1, 2], [0, 5])} == {expected}


def test_the_type_of_a_batch_does_not_depend_on_refused_items() -> None:
    items = Refusing([0.5, 1.5, 2, 3, 4, 5])
    arrays = arrays_of(Catalog.of(items), np.array([2, 3]))
    assert arrays["input"].dtype == np.float32


def test_bfloat16_and_lists_of_a_table_become_numbers() -> None:
    assert arrays_of(Catalog.of(torch.ones(6, 2, dtype=torch.bfloat16)))["input"].dtype == np.float32
    assert arrays_of(Catalog.of(pa.table({"x": [[1, 2]] * 6})))["x"].tolist() == [[1, 2]] * 3


def test_maps_and_lists_of_structs_of_a_table_keep_their_types() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    table = pa.table({"m": pa.array([[("a", 1)]] * 6, kind), "chat": [[{"role": "user"}]] * 6})
    rows = arrays_of(Catalog.of(table))
    assert rows["m"].tolist() == [{"a": 1}] * 3
    assert rows["chat"].tolist() == [[{"role": "user"}]] * 3
    with pytest.raises(PlanError, match="The column 'm' of the table has nulls"):
        Catalog.of(pa.table({"m": pa.array([[("a", None)]], kind)}))
    Catalog.of(pa.table({"m": pa.array([[("a", None)], [("b", 1)]], kind)}).slice(1))


def test_items_of_a_batch_are_asked_for_at_once() -> None:
    items = Asked(range(6))
    arrays_of(Catalog.of(items))
    assert [4, 0, 4] in items.asked


@pytest.mark.parametrize("table", [pl.DataFrame, pa.table])
def test_tables_have_labels_and_identities(table: Any) -> None:
    catalog = Catalog.of(table({"x": [1.5, 2, 3], "y": [1, 0, 1]}), labels="y")
    assert catalog.labels is not None
    assert catalog.labels.tolist() == [1, 0, 1]
    assert Catalog.of(table({"x": [1.5, 2, 4], "y": [1, 0, 1]}), labels="y").fingerprint != catalog.fingerprint


def test_an_item_that_can_only_be_asked_for_with_others_is_refused_alone() -> None:
    with RecordReader(Catalog.of(OnlyTogether()), on_corrupt="mask") as reader:
        assert reader.load(np.array([1, 2, 3])).intact.tolist() == [True, False, True]


def test_columns_of_pandas_are_read_by_place() -> None:
    """Not by their index, which shuffled and filtered ones keep; and their nulls are refused as those of others."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": range(6), "y": ["a"] * 5 + [None]}, index=[5, 4, 3, 2, 1, 9])
    assert arrays_of(Catalog.of(frame["x"]))["input"].tolist() == arrays_of(Catalog.of(frame[["x"]]))["x"].tolist()
    with pytest.raises(PlanError, match="The column 'y' of the table has nulls"):
        Catalog.of(frame)


def test_nulls_of_a_table_are_refused() -> None:
    with pytest.raises(PlanError, match="The column 'x' of the table has nulls"):
        Catalog.of(pl.DataFrame({"x": [1, None]}))


def test_labels_are_an_array_or_what_the_object_has() -> None:
    for labels in ("targets", np.array(Squares().targets)):
        catalog = Catalog.of(Squares(), names=("x", "y"), labels=labels)
        assert catalog.labels is not None
        assert catalog.labels.tolist() == [0, 1, 0, 1, 0, 1]
    table = Catalog.of({"x": np.zeros(3), "y": np.array([2, 0, 1])}, labels="y")
    assert table.labels is not None
    assert table.labels.tolist() == [2, 0, 1]


def test_draws_belong_to_the_item_and_the_epoch() -> None:
    catalog = Catalog.of(Squares(noisy=True), names=("x", "y"))
    torch.manual_seed(1)
    first = arrays_of(catalog, epoch=1)["x"]
    assert (first[0] == first[2]).all()
    np.testing.assert_array_equal(arrays_of(catalog, np.array([0, 5, 4]), epoch=1)["x"][[2, 0]], first[:2])
    assert (arrays_of(catalog, epoch=2)["x"] != first).all()
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.rand(1) == after  # the program's own draws are what they were


def test_processes_make_the_same_items() -> None:
    catalog = Catalog.of(Squares(noisy=True), names=("x", "y"))
    with RecordReader(catalog) as reader, DecodeProcesses(reader, decode, 1) as processes:
        draws = SampleRandom(7, 1, IDS)
        there, here = processes(IDS, draws).features, read_and_decode(reader, decode, IDS, draws).features
    np.testing.assert_array_equal(there["x"], here["x"])


def test_an_object_that_cannot_be_copied_is_named() -> None:
    dataset = Squares(noisy=True)
    vars(dataset)["lock"] = threading.Lock()
    with (
        RecordReader(Catalog.of(dataset, names=("x", "y"))) as reader,
        pytest.raises(PlanError, match=r"The Squares cannot be sent to another process: [^$]*HINT: open files"),
    ):
        DecodeProcesses(reader, decode, 1)


class Weighed(Squares):
    """A tensor in each of several dtypes, and whether their memory is that which processes share."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = [torch.arange(6).to(dtype) for dtype in (torch.float32, torch.bfloat16, torch.bool)]
        self.turned = torch.arange(12).reshape(2, 6).T

    def __getitem__(self, number: int) -> Any:
        tensors = [*self.rows, self.turned]
        shared = all(_is_shared(tensor.data_ptr()) for tensor in tensors)
        return [*(tensor[number] for tensor in tensors), shared]


def _is_shared(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if begin <= address < end:
            return "data_sharding-catalog" in line
    raise AssertionError(f"nothing is mapped at {address}")


def test_processes_share_the_memory_of_tensors() -> None:
    names = ("float", "brain", "bool", "turned", "shared")
    with RecordReader(Catalog.of(Weighed(), names=names)) as reader, DecodeProcesses(reader, decode, 1) as processes:
        there, here = processes(IDS, None).features, read_and_decode(reader, decode, IDS, None).features
    assert (there.pop("shared").tolist(), here.pop("shared").tolist()) == ([True] * 3, [False] * 3)
    assert {n: (a.dtype, a.tolist()) for n, a in there.items()} == {n: (a.dtype, a.tolist()) for n, a in here.items()}


class Sound:
    """What torchcodec's AudioDecoder shows of itself; that needs FFmpeg and torch's build for CUDA."""

    def get_all_samples(self) -> Any:
        return namedtuple("AudioSamples", ["data", "sample_rate"])(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 16_000)


def test_sounds_become_samples_and_their_rate() -> None:
    arrays = arrays_of(Catalog.of([{"audio": Sound(), "label": 1}] * 5))
    assert arrays["audio.array"].tolist() == [[2.0, 3.0]] * 3
    assert arrays["audio.sampling_rate"].tolist() == [16_000] * 3


def test_array_records_are_items(tmp_path: Path) -> None:
    writer = ArrayRecordWriter(str(tmp_path / "part"), "group_size:1")
    for number in range(6):
        writer.write(bytes([number] * 3))
    writer.close()
    arrays = arrays_of(Catalog.of(ArrayRecordDataSource(str(tmp_path / "part"))))
    assert arrays["input"].tolist() == [bytes([number] * 3) for number in IDS]


class Remembering(Squares):
    """It writes into an array of its own."""

    def __init__(self) -> None:
        super().__init__(noisy=True)
        self.seen = np.zeros(6)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        self.seen[number] += 1
        return super().__getitem__(number)


def test_an_object_may_write_into_its_arrays_in_a_process() -> None:
    dataset = Remembering()
    with RecordReader(Catalog.of(dataset, names=("x", "y"))) as reader:
        before = dataset.seen.copy()
        with DecodeProcesses(reader, decode, 1) as processes:
            assert processes(IDS, None).features["y"].tolist() == IDS.tolist()
    np.testing.assert_array_equal(dataset.seen, before)  # the process has a copy


def test_other_data_have_another_fingerprint() -> None:
    same = [Catalog.of(Squares(noisy=noisy), names=("x", "y")).fingerprint for noisy in (True, True)]
    assert same[0] == same[1]
    others = {
        Catalog.of(dataset, **options).fingerprint
        for dataset, options in (
            *(
                (Squares(noisy=True), {"names": ("x", "y")}),
                (Squares(), {"names": ("x", "y")}),
                (Squares(5), {"names": ("x", "y")}),
            ),
            *((Squares(), {"version": "1"}), (Squares(), {"version": "2"}), (Squares(), {"labels": "targets"})),
        )
    }
    assert len(others) == 6


def test_a_saved_catalog_has_the_fingerprint_and_no_items(tmp_path: Path) -> None:
    catalog = Catalog.of(Squares(), names=("x", "y"))
    catalog.save(tmp_path / "catalog.npz")
    loaded = Catalog.load(tmp_path / "catalog.npz")
    assert (loaded.fingerprint, loaded.describe(3)) == (catalog.fingerprint, catalog.describe(3))
    with RecordReader(loaded) as reader, pytest.raises(PlanError, match="items of a Squares"):
        reader.read(IDS)


def test_an_object_that_changes_its_length_is_noticed() -> None:
    dataset = Squares()
    catalog = Catalog.of(dataset, names=("x", "y"))
    dataset.count = 7
    with pytest.raises(ChangedDataError, match="had 6 items and has 7 now"):
        arrays_of(catalog)


@pytest.mark.parametrize(
    ("kind", "make", "words"),
    [
        (PlanError, lambda: Catalog.of(iter([1])), "has no length|no length"),
        (PlanError, lambda: Catalog.of("text"), "it is text"),
        (MissingDataError, lambda: Catalog.of([]), "has no item"),
        (PlanError, lambda: Catalog.of({"x": [1, 2], "y": [1]}), "have the lengths"),
        (PlanError, lambda: Catalog.of(Squares(), labels="nothing"), "no attribute and no column"),
        (PlanError, lambda: Catalog.of(Squares(), labels=[1, 2]), "The labels are an array.*one whole number there"),
        (PlanError, lambda: Catalog.of((np.zeros(3), np.zeros(3))), "tuple of arrays"),
        (PlanError, lambda: Catalog.of({"a": np.zeros(3), "b": 4}), "'b' of the dict is an object of type int"),
        (PlanError, lambda: Catalog.of({"train": pa.table({"x": [1]})}), "of type Table"),
        (PlanError, lambda: Catalog.of(pa.table({"x": [1, None]})), "'x' of the table has nulls"),
        (PlanError, lambda: Catalog.of(pa.table({"x": [[1, 2], [1, None]]})), "'x' of the table has nulls"),
        (PlanError, lambda: Catalog.of(pl.DataFrame({"x": [[], [[1, None]]]})), "'x' of the table has nulls"),
        (PlanError, lambda: Catalog.of({0: [1, 2], "0": [1, 2]}), "Two columns of the table have the name '0'"),
        (PlanError, lambda: Catalog.of(pa.table([[1], [2]], names=["a", "a"])), "have the name 'a'"),
        (PlanError, lambda: arrays_of(Catalog.of([{"a": {"b": 1}, "a.b": 2}] * 6)), "have the name 'a.b'"),
        (ShardingError, lambda: arrays_of(Catalog.of(Fewer())), "returned 1 items, and was asked for 2"),
        (ShardingError, lambda: arrays_of(Catalog.of(Fewer(columns=True))), "returned a dict"),
        (PlanError, lambda: arrays_of(Catalog.of([np.ma.array([1, 2], mask=[0, 1])] * 5)), "1 missing values"),
        (PlanError, lambda: arrays_of(Catalog.of({"a": np.ma.array([1] * 6, mask=[0, 1] * 3)})), "3 missing values"),
        (PlanError, lambda: Catalog.of([1, 2]).split("0.9"), "split of '0.9'"),  # type: ignore[arg-type]
        (ShardingError, lambda: arrays_of(Catalog.of([1, None, 1, 1, None])), "is None"),
        (ShardingError, lambda: arrays_of(Catalog.of([1, 2.5, 1, 1, 2.5])), "float32 in some items, and int64"),
        (PlanError, lambda: arrays_of(Catalog.of(Squares(), names=("x", "x"))), "has 2 parts"),
        (PlanError, lambda: arrays_of(Catalog.of(Squares())), "has 2 parts, and no names were given"),
        (PlanError, lambda: arrays_of(Catalog.of(Squares(), names=("x", "y", "z"))), "the names are"),
        (ShardingError, lambda: arrays_of(Catalog.of([{"a": 1}, *[{"b": 1}] * 5])), "have different parts"),
        (PlanError, lambda: Catalog.of(np.array(5)), "no length"),
        (PlanError, lambda: Catalog.of({"a": {1, 2}}), "an object of type set"),
        (ShardingError, lambda: arrays_of(Catalog.of([{"a": ([1, 2], [3])}] * 5)), "'a' of an item is a tuple"),
        (ShardingError, lambda: arrays_of(Catalog.of([0, 1, 2, 3, "b"])), "a number or an array in some"),
        (ShardingError, lambda: arrays_of(Catalog.of([{"a": 1}] * 4 + [{"a": None}])), "None in some items"),
        (ShardingError, lambda: arrays_of(Catalog.of(range(5), collate_fn=print)), "What collate_fn returned is None"),
        (PlanError, lambda: arrays_of(Catalog.of(range(5), collate_fn=list)), "What collate_fn returned has 3 parts"),
    ],
)
def test_what_cannot_be_data_is_refused(kind: type[ShardingError], make: Callable[[], Any], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        make()
    assert "HINT: " in str(caught.value)


@pytest.mark.parametrize(
    ("odd", "other", "words"),
    [
        (np.zeros(3), np.zeros(2), "for record 4 \\(list.*HINT: pad sequences"),
        (np.zeros((3, 3)), np.zeros(3), "for record 4 \\(list.*HINT: make items of one shape"),
        ({"a": 1, "b": 2}, {"a": 1}, "gives 'b' for record 4 \\(list.*and not for record 0"),
        ({"a": 1}, {"a": 1, "b": 2}, "gives 'b' for record 0 \\(list.*and not for record 4"),
        ({"a": None}, {"a": 1}, "'a' of object\\[\\] for record 4.*and of int64\\[\\] for record 0"),
    ],
)
def test_an_item_unlike_the_others_is_named(odd: Any, other: Any, words: str) -> None:
    catalog = Catalog.of([odd if n == 4 else other for n in range(6)])
    with RecordReader(catalog) as reader, pytest.raises(ShardingError, match=f"(?s){words}"):
        read_and_decode(reader, decode, np.array([0, 4]), None)


@pytest.mark.parametrize(
    ("dataset", "note"),
    [
        (Broken(), "in item 4 of the Broken"),
        (torch.utils.data.Subset(Broken(), range(6)), "in item 4 of the Subset"),
        (
            Together(),
            "in 3 items together, the first of them item 4, of the Together; each alone does not fail",
        ),
    ],
)
def test_an_item_that_raises_is_named(dataset: Any, note: str) -> None:
    with (
        RecordReader(Catalog.of(dataset, names=("x", "y"), draws=False)) as reader,
        pytest.raises(ValueError, match="unreadable") as caught,
    ):
        reader.load(IDS)
    assert caught.value.__notes__ == [note]


class Stopping(Squares):
    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        raise StopIteration


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: torch.utils.data.Subset(data, range(6))])
def test_an_item_does_not_end_the_epoch(wrap: Callable[[Any], Any]) -> None:
    with pytest.raises(RuntimeError, match=r"raised StopIteration for item \d"):
        Catalog.of(wrap(Stopping()))

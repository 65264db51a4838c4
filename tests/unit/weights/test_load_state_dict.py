"""`--init-weights` takes what a model's own `load_state_dict` takes: ties, hooks, versions, prefixes; and shards."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_model, save_file, save_model
from torch import nn
from torch.nn.utils import parametrizations

from hvdtrain.adapters.torch.adapter import TorchAdapter
from hvdtrain.cli.main import main
from hvdtrain.config.training_options import TrainingOptions
from hvdtrain.engine.state_sync import weights_hash
from hvdtrain.errors import UsageError
from hvdtrain.tasks.torch import TorchDigits
from hvdtrain.topology import Topology
from hvdtrain.weights.initial_weights import initial_state

Arrays = dict[str, NDArray[Any]]
WORDS, WIDTH = 7, 4


class Tied(nn.Module):
    """A language model whose last layer has the embedding's weights, as GPT-2 has."""

    def __init__(self, words: int = WORDS) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, words, bias=False)
        self.head.weight = self.embed.weight


class Turned(nn.Linear):
    """A layer that kept its weight the other way round in its first version, and called its bias "shift"."""

    _version = 2

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        if (local_metadata.get("version") or 1) < 2:
            state_dict[f"{prefix}weight"] = state_dict[f"{prefix}weight"].T
            state_dict[f"{prefix}bias"] = state_dict.pop(f"{prefix}shift")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


class Model(TorchDigits):
    """A task of any model."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__(width=2)
        self.build = build

    def build_model(self) -> nn.Module:
        return self.build()

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr)


def arrays_of(model: nn.Module) -> Arrays:
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def started(build: Callable[[], nn.Module], path: Path, exclude: str | None = None) -> tuple[Arrays, Arrays]:
    """The first weights of a training, and those that it would have had without a file."""
    fresh = arrays_of(build())
    state = initial_state({f"model/{name}": a for name, a in fresh.items()}, path, Model(build), exclude)
    return {name.removeprefix("model/"): array for name, array in state.items()}, fresh


def assert_same(first: Arrays, second: Arrays) -> None:
    assert set(first) == set(second)
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], name)


@pytest.fixture
def tied_file(tmp_path: Path) -> Path:
    """As Hugging Face writes it: one name for the two."""
    path = tmp_path / "tied.safetensors"
    save_model(Tied(), str(path))
    return path


def test_tied_weights_need_one_name_only(tied_file: Path, tmp_path: Path) -> None:
    """Either of the two, with and without the prefixes of wrappers."""
    model = Tied()
    load_model(model, str(tied_file))
    for left_out in ("embed.weight", "head.weight"):
        for prefix in ("", "module._orig_mod."):
            state = {f"{prefix}{name}": tensor for name, tensor in model.state_dict().items() if name != left_out}
            torch.save(state, tmp_path / "one.pt")
            for path in (tied_file, tmp_path / "one.pt"):
                first, fresh = started(Tied, path)
                assert_same(first, arrays_of(model))
                assert not np.array_equal(first["head.weight"], fresh["head.weight"])


@pytest.mark.parametrize("pattern", ["module.2.*", "2.*"])
def test_an_excluded_weight_stays_fresh_by_its_name_in_the_file_or_in_the_model(pattern: str, tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))

    state = {f"module.{name}": tensor for name, tensor in build().state_dict().items()}
    torch.save(state, tmp_path / "wrapped.pt")
    first, fresh = started(build, tmp_path / "wrapped.pt", pattern)
    np.testing.assert_array_equal(first["2.weight"], fresh["2.weight"])
    np.testing.assert_array_equal(first["0.weight"], state["module.0.weight"].numpy())


def test_one_name_of_tied_weights_that_is_excluded_changes_no_rank_s_weights(
    tied_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 loads arrays that are views of its own model's memory, and the other ranks copies of them."""
    ranks = [TorchAdapter(Model(Tied), Topology.single(), seed, 0.1, TrainingOptions()) for seed in (1, 2)]
    expected, _ = started(Tied, tied_file)
    state = initial_state(ranks[0].view_state(), tied_file, Model(Tied), "head.weight")
    assert "head.weight" in capsys.readouterr().out
    copies = {name: array.copy() for name, array in state.items()}
    for rank, given in zip(ranks, (state, copies), strict=True):
        rank.load_state(given)
    assert len({weights_hash(rank.view_state()) for rank in ranks}) == 1
    assert_same({n.removeprefix("model/"): a for n, a in ranks[1].view_state().items()}, expected)


def test_tied_weights_stay_fresh_where_all_of_their_names_are_excluded(tied_file: Path) -> None:
    first, fresh = started(Tied, tied_file, "head.weight,embed.*")
    for name in ("head.weight", "embed.weight"):
        np.testing.assert_array_equal(first[name], fresh[name])
    assert not np.array_equal(first["body.weight"], fresh["body.weight"])


def test_tied_weights_that_do_not_fit_are_named_and_excluded_together(tied_file: Path, tmp_path: Path) -> None:
    def larger() -> nn.Module:
        return Tied(WORDS + 2)

    with pytest.raises(UsageError, match=r"Of another shape: embed\.weight .*, head\.weight \[7, 4\] where") as error:
        started(larger, tied_file)
    told = error.value.hint.partition("--init-weights-exclude '")[2].removesuffix("'.")
    first, fresh = started(larger, tied_file, told)
    np.testing.assert_array_equal(first["head.weight"], fresh["head.weight"])
    save_file({name: torch.ones(WIDTH) for name in ("body.bias",)}, tmp_path / "less.safetensors")
    with pytest.raises(UsageError, match=r"Missing: embed\.weight, body\.weight, head\.weight\."):
        started(Tied, tmp_path / "less.safetensors")


def test_two_arrays_for_one_are_refused_unless_one_is_excluded(tmp_path: Path) -> None:
    state = Tied().state_dict()
    state["head.weight"] = state["head.weight"] + 1
    torch.save(state, tmp_path / "untied.pt")
    with pytest.raises(UsageError, match=r"holds different values for embed\.weight and head\.weight") as error:
        started(Tied, tmp_path / "untied.pt")
    assert "--init-weights-exclude head.weight" in error.value.hint
    first, _ = started(Tied, tmp_path / "untied.pt", "head.weight")
    np.testing.assert_array_equal(first["head.weight"], state["embed.weight"].numpy())


def test_the_old_form_of_weight_norm_is_taken(tmp_path: Path) -> None:
    """`weight_g` and `weight_v`, which the layer's hook renames."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        old = nn.utils.weight_norm(nn.Linear(3, 2))
    state = nn.Sequential(old).state_dict()
    assert set(state) == {"0.bias", "0.weight_g", "0.weight_v"}
    torch.save(state, tmp_path / "old.pt")
    save_file(state, tmp_path / "old.safetensors")

    def build() -> nn.Module:
        return nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 2)))

    for name in ("old.pt", "old.safetensors"):
        first, _ = started(build, tmp_path / name)
        model = build()
        model.load_state_dict({key: torch.from_numpy(array) for key, array in first.items()})
        inputs = torch.arange(6.0).reshape(2, 3)
        torch.testing.assert_close(model(inputs), old(inputs))
    kept, fresh = started(build, tmp_path / "old.pt", "*.original0")
    np.testing.assert_array_equal(
        kept["0.parametrizations.weight.original0"], fresh["0.parametrizations.weight.original0"]
    )
    torch.save({"0.bias": torch.ones(2), "0.weight_v": torch.ones(2, 3)}, tmp_path / "half.pt")
    with pytest.raises(UsageError, match=r"Missing: 0\.parametrizations\.weight\.original0"):
        started(build, tmp_path / "half.pt")


@pytest.mark.parametrize("prefix", ["", "module."])
def test_layers_know_the_version_in_which_they_were_saved(tmp_path: Path, prefix: str) -> None:
    def build() -> nn.Module:
        return nn.Sequential(Turned(2, 2))

    model = build()
    new = (nn.DataParallel(model) if prefix else model).state_dict()
    torch.save(new, tmp_path / "new.pt")
    assert_same(started(build, tmp_path / "new.pt")[0], arrays_of(model))
    old = {f"{prefix}0.weight": model[0].weight.detach().T, f"{prefix}0.shift": model[0].bias.detach()}  # type: ignore[index, union-attr]
    torch.save(old, tmp_path / "old.pt")
    assert_same(started(build, tmp_path / "old.pt")[0], arrays_of(model))


def test_an_adapter_loads_weights_as_those_of_the_present_version() -> None:
    adapters = [TorchAdapter(Model(lambda: Turned(2, 2)), Topology.single(), 1, 0.1, TrainingOptions()) for _ in "ab"]
    state = adapters[0].state()
    adapters[1].load_state(state)
    assert weights_hash(adapters[1].view_state()) == weights_hash(state)


def test_masks_may_be_kept_as_bytes(tmp_path: Path) -> None:
    def build() -> nn.Module:
        model = nn.Linear(2, 2)
        model.register_buffer("mask", torch.zeros(2, dtype=torch.bool))
        return model

    state = {**build().state_dict(), "mask": torch.tensor([1, 0], dtype=torch.uint8)}
    torch.save(state, tmp_path / "bytes.pt")
    first, _ = started(build, tmp_path / "bytes.pt")
    assert (first["mask"].dtype, first["mask"].tolist()) == (np.bool_, [True, False])
    torch.save({**state, "mask": torch.tensor([2, 0])}, tmp_path / "counts.pt")
    with pytest.raises(UsageError, match="mask in .* is int64"):
        started(build, tmp_path / "counts.pt")


def test_an_average_of_weights_is_taken_without_its_counter(tmp_path: Path) -> None:
    average = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
    torch.save(average.state_dict(), tmp_path / "average.pt")
    first, _ = started(lambda: nn.Linear(2, 2), tmp_path / "average.pt", "n_averaged")
    assert_same(first, arrays_of(average.module))


class Shards:
    """A sharded checkpoint of Hugging Face's layout, in a folder of its own."""

    def __init__(self, folder: Path, suffix: str) -> None:
        self.folder, self.model = folder, Tied()
        state = {name: tensor for name, tensor in self.model.state_dict().items() if name != "head.weight"}
        stem = "model" if suffix == "safetensors" else "pytorch_model"
        self.files = {name: f"{stem}-0000{i % 2 + 1}-of-00002.{suffix}" for i, name in enumerate(state)}
        folder.mkdir()
        for file in set(self.files.values()):
            part = {name: state[name] for name, where in self.files.items() if where == file}
            save_file(part, folder / file) if suffix == "safetensors" else torch.save(part, folder / file)
        self.index = folder / f"{stem}.{suffix}.index.json"
        self.write_index(self.files)

    def write_index(self, files: dict[str, Any]) -> None:
        self.index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}, indent=2))


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards_are_one_file(tmp_path: Path, suffix: str) -> None:
    """By the index, and by the folder; a new head where the old one does not fit."""
    shards = Shards(tmp_path / "old", suffix)
    for path in (shards.index, shards.folder):
        assert_same(started(Tied, path)[0], arrays_of(shards.model))
        first, fresh = started(lambda: Tied(9), path, "head.*,embed.*")
        np.testing.assert_array_equal(first["head.weight"], fresh["head.weight"])
        np.testing.assert_array_equal(first["body.bias"], arrays_of(shards.model)["body.bias"])
    output = tmp_path / "whole.safetensors"
    assert main(["export", str(shards.folder), "--output", str(output)]) == 0
    assert_same(started(Tied, output)[0], arrays_of(shards.model))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_folder_of_one_file_is_that_file(tmp_path: Path, name: str) -> None:
    model = Tied()
    save_model(model, str(tmp_path / name)) if name[0] == "m" else torch.save(model.state_dict(), tmp_path / name)
    assert_same(started(Tied, tmp_path)[0], arrays_of(model))


MISSING = (
    r"The index at \S+/old/model\.safetensors\.index\.json names (model-0000\d-of-00002\.safetensors)\. "
    r"\1, .* is missing.*\nHINT: copy all shards beside the index"
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: (s.folder / s.files["body.bias"]).unlink(), MISSING),
        (lambda s: s.write_index({**s.files, "body.bias": "../other.safetensors"}), "is not the name of a file"),
        (lambda s: s.write_index({**s.files, "body.bias": 3}), "is not the name of a file"),
        (lambda s: s.write_index({**s.files, "body.bias": s.index.name}), "is not a file of safetensors"),
        (lambda s: s.write_index({**s.files, "extra": s.files["body.bias"]}), "lists extra"),
        (lambda s: s.write_index({}), "lists no weights"),
        (lambda s: s.index.write_text('{"weight_map": {'), "is not a file of weights"),
        (lambda s: s.index.write_text('{"layers": 3}'), "is not a file of weights"),
    ],
)
def test_a_wrong_index_is_refused(tmp_path: Path, change: Callable[[Shards], object], message: str) -> None:
    shards = Shards(tmp_path / "old", "safetensors")
    change(shards)
    with pytest.raises(UsageError, match=message):
        started(Tied, shards.index)

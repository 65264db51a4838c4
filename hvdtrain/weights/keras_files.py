"""Keras' weights files: .weights.h5 and .keras of Keras 3, and .h5 of Keras before it. Needs h5py, and no framework.

    .weights.h5 of Keras 3      layers/conv2d_1/vars/0, where the group `vars` has the layer's name as an attribute
    .keras                      a zip, in which model.weights.h5 is such a file
    .h5 of Keras 1 and 2        conv1/conv1/kernel:0, listed in the attributes layer_names and weight_names; a whole
                                model has this in the group model_weights

Nothing else in a .keras file is looked at: its config may name code.
"""

import re
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from hvdtrain.errors import UsageError
from hvdtrain.weights.named_weights import Arrays

MEMBER: Final = "model.weights.h5"
"""Where a .keras file keeps its weights."""

_NO_WEIGHTS: Final = re.compile(r"^optimizer/|(^|/)seed_generator(_\d+)?/")
_FIRST_NAME: Final = "_layer_checkpoint_dependencies/"  # of `layers/` in Keras 3.0
_VARIABLES: Final = {
    "conv2d": ("kernel", "bias"),
    "dense": ("kernel", "bias"),
    "embedding": ("embeddings",),
    "batch_normalization": ("gamma", "beta", "moving_mean", "moving_variance"),
    "layer_normalization": ("gamma", "beta"),
}
"""Of each class of layer that `models.exchange` knows, in the order of its `vars`. A bias may be missing."""


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The h5py.File of a .weights.h5, .h5 or .keras file.

    Raises `UsageError`: h5py is not installed, or the file is damaged.
    """
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{path} is an HDF5 file, and h5py is not installed.", "Nothing else reads it.", "pip install h5py."
        ) from error
    try:
        with ExitStack() as stack:
            file: Any = path
            if zipfile.is_zipfile(path):
                archive = stack.enter_context(zipfile.ZipFile(path))
                if archive.getinfo(MEMBER).compress_type != zipfile.ZIP_STORED:  # Keras stores; some bytes could be GB
                    raise zipfile.BadZipFile(f"{MEMBER} is compressed")
                file = stack.enter_context(archive.open(MEMBER))
            yield stack.enter_context(h5py.File(file, "r"))
    except (OSError, RuntimeError, KeyError, zipfile.BadZipFile) as error:  # h5py's, also while values are read
        raise _damaged(path, str(error)) from error


def datasets(file: Any, path: Path) -> dict[str, Any]:
    """Every dataset with weights, by its place in `file`; values are not read yet.

    Raises UsageError: one is not a plain array of numbers in this very file. HDF5 can refer to other files, and
    describe arrays of any size in some bytes.
    """
    plain: dict[str, Any] = {}
    for name, item in _walk(file, path):
        if not _NO_WEIGHTS.search(name):
            plain[name.replace(_FIRST_NAME, "layers/", 1)] = item
    return plain


def is_of_keras_3(file: Any) -> bool:
    return "layer_names" not in file.attrs and "model_weights" not in file


def read_keras(path: Path) -> Arrays:
    """Arrays by the paths of Keras variables, such as "conv1/kernel".

    Raises `UsageError`: the file is damaged, or has layers for which this is unknown without Keras.
    """
    with opened(path) as file:
        return _of_keras_3(file, path) if is_of_keras_3(file) else read_old(file, path)


def read_old(file: Any, path: Path) -> Arrays:
    """As `read_keras`, of the layout before Keras 3."""
    root = file.get("model_weights", file)
    plain = datasets(root, path)
    arrays: Arrays = {}
    for layer in _texts(root.attrs.get("layer_names", ())):
        for weight in _texts(root[layer].attrs.get("weight_names", ()) if layer in root else ()):
            item = plain.get(f"{layer}/{weight}")
            if item is None:
                raise _damaged(path, f"there is no {layer}/{weight}, which it lists")
            arrays[weight.removesuffix(":0")] = item[()]
    return arrays


def _of_keras_3(file: Any, path: Path) -> Arrays:
    layers: dict[str, dict[int, Any]] = {}
    for name, item in datasets(file, path).items():
        place, _, number = name.rpartition("/vars/")
        if not number.isdecimal():
            raise _unknown(path, name, "its variables are not numbered")
        layers.setdefault(place, {})[int(number)] = item
    arrays: Arrays = {}
    for place, items in layers.items():
        attribute = file[place.replace("layers/", _FIRST_NAME, 1) if _FIRST_NAME in file else place]["vars"].attrs
        layer = str(attribute.get("name", place.rpartition("/")[2]))
        for kind, item in zip(_kinds(place, len(items), path), (items[n] for n in sorted(items)), strict=True):
            if f"{layer}/{kind}" in arrays:
                raise _unknown(path, layer, "there are two layers of this name")
            arrays[f"{layer}/{kind}"] = item[()]
    return arrays


def _kinds(place: str, count: int, path: Path) -> tuple[str, ...]:
    kind_of_layer = re.sub(r"_\d+$", "", place.rpartition("/")[2])
    kinds = _VARIABLES.get(kind_of_layer, ())
    if count == len(kinds) or (count == 1 and "bias" in kinds):
        return kinds[:count]
    raise _unknown(path, place, f"a {kind_of_layer or 'layer'} of {count} variables has no counterpart in torch")


def _walk(group: Any, path: Path, prefix: str = "") -> Iterator[tuple[str, Any]]:
    import h5py

    for name in group:
        item = group[name] if isinstance(group.get(name, getlink=True), h5py.HardLink) else None
        if isinstance(item, h5py.Group):
            yield from _walk(item, path, f"{prefix}{name}/")
        elif isinstance(item, h5py.Dataset) and _is_plain(item):
            yield f"{prefix}{name}", item
        else:
            raise _damaged(path, f"{prefix}{name} is not a plain array of numbers in this file")


def _is_plain(item: Any) -> bool:
    """Numbers that take their full size in this file, so that reading them takes no more memory than the file does."""
    here = item.external is None and not item.is_virtual and item.id.get_storage_size() == item.nbytes
    return bool(here and item.dtype.kind in "fiub")


def _texts(names: Any) -> list[str]:
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names]


def _damaged(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is not a valid weights file of Keras: {why}.",
        "Its weights are lost or not its own.",
        "save it again by model.save_weights('NAME.weights.h5').",
    )


def _unknown(path: Path, name: str, why: str) -> UsageError:
    return UsageError(
        f"The layer {name} in {path} cannot be named: {why}.",
        "Weights are given to layers by name.",
        "exchange models that both frameworks have: resnet18 to resnet152, cnn, and the text task's.",
    )

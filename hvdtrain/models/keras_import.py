"""Imports Keras without scikit-learn, matplotlib and pandas, which it imports wherever they are installed.

They take up to a third of the time in which a worker imports TensorFlow, for `keras.wrappers` and
`keras.visualization`, which no training uses, and for arrays that are given to `fit` (`array_slicing`). So these are
put off until something in them is asked for.
"""

import os
import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from hvdtrain.errors import UsageError

_LATER = {
    "keras.wrappers",
    "keras.visualization",
    "keras.src.visualization",
    "keras.src.trainers.data_adapters.array_slicing",
}


class _Later(ModuleType):
    """A module that is executed when something that only its code can define is asked for.

    `importlib.util.LazyLoader` executes one for any attribute, and TensorFlow's autograph asks every loaded module for
    its `__file__`, so that nothing was put off.
    """

    def __getattr__(self, name: str) -> Any:
        if (name.startswith("__") and name != "__all__") or self.__spec__ is None or self.__spec__.loader is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment]  # from here on an ordinary one
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


class _LoadLater(Loader):
    """Makes a module's place, and leaves its code to `_Later`."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Later(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader


class _FindLater:
    """Finds these modules where they are."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in _LATER:
            return None
        others = (finder for finder in sys.meta_path if finder is not _FindLater)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)  # type: ignore[arg-type]
        if spec is not None and spec.loader is not None:
            spec.loader = _LoadLater(spec.loader)
        return spec


def prepare_keras() -> None:
    """Before the first `import keras` or `import tensorflow`: the backend, fewer log lines, fewer imports.

    Environment variables that are set stay as they are.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["KERAS_BACKEND"] = os.environ.get("KERAS_BACKEND") or "tensorflow"  # Keras takes "" for none
    if _FindLater not in sys.meta_path:
        sys.meta_path.insert(0, _FindLater)


def require_tensorflow_backend() -> None:
    """Refuse another backend, which Keras has or would have. Imports nothing.

    Raises:
        UsageError: Keras computes with torch or jax, as KERAS_BACKEND says, or as it was imported with.
    """
    keras = sys.modules.get("keras")
    backend = os.environ.get("KERAS_BACKEND") or "tensorflow" if keras is None else keras.config.backend()
    if backend != "tensorflow":
        raise UsageError(
            f"Keras runs on the {backend} backend.",
            "hvdtrain reduces TensorFlow's gradients.",
            "set KERAS_BACKEND=tensorflow before keras is imported, or use hvdtrain's own training for PyTorch.",
        )

"""Imports Keras without scikit-learn and matplotlib, which it imports wherever they are installed.

They take up to a third of the time in which a worker imports TensorFlow, for `keras.wrappers` and
`keras.visualization`, which no training uses. So these two are put off until something in them is asked for.
"""

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import LazyLoader

_LATER = {"keras.wrappers", "keras.visualization", "keras.src.visualization"}


class _LoadLater:
    """Finds these modules where they are, to be executed when an attribute of theirs is asked for."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in _LATER:
            return None
        others = (finder for finder in sys.meta_path if finder is not _LoadLater)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)  # type: ignore[arg-type]
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def prepare_keras() -> None:
    """Before the first `import keras` or `import tensorflow`: the backend, fewer log lines, fewer imports.

    Environment variables that are set stay as they are.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if _LoadLater not in sys.meta_path:
        sys.meta_path.insert(0, _LoadLater)

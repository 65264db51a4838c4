"""What `prepare_keras` puts off is not imported for training, and is there for whoever asks for it."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task
from hvdtrain.tasks import task_registry

PUT_OFF = """
import sys
from hvdtrain.models.keras_import import prepare_keras
prepare_keras()
import keras
import tensorflow as tf
from keras.src.losses import losses
tf.function(losses.mean_squared_error)(tf.ones(2), tf.ones(2))  # autograph looks at all modules for the source
print({"sklearn", "matplotlib", "pandas"} & set(sys.modules))
assert keras.wrappers.SKLearnClassifier is tf.keras.wrappers.SKLearnClassifier
assert issubclass(keras.wrappers.SKLearnClassifier, sys.modules["sklearn"].base.BaseEstimator)
assert keras.visualization.plot_image_gallery.__module__.startswith("keras.")
print("matplotlib.pyplot" in sys.modules)
import pandas
model = keras.Sequential([keras.layers.Dense(1)])
print(model.predict(pandas.DataFrame({"x": [1.0, 2.0]}), verbose=0).shape)
"""


def test_scikit_learn_matplotlib_and_pandas_are_imported_by_whoever_asks_for_them() -> None:
    done = subprocess.run([sys.executable, "-c", PUT_OFF], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "set()\nTrue\n(2, 1)\n"), done.stderr


class Rows(Task):
    """Its class was imported, whatever Keras runs on."""

    framework = "tensorflow"

    def open_data(self, data: Any) -> Any:
        raise NotImplementedError

    decode = build_model = measure = build_optimizer = open_data


@pytest.mark.parametrize("backend", ["tensorflow", "", "torch", "jax"])
@pytest.mark.parametrize("is_imported", [False, True])
def test_a_tensorflow_class_is_usable_on_the_backend_of_tensorflow_only(
    backend: str, is_imported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What KERAS_BACKEND says counts until Keras is imported, and then what it was imported with."""
    monkeypatch.setenv("KERAS_BACKEND", "torch" if is_imported else backend)
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    if is_imported:
        keras = SimpleNamespace(config=SimpleNamespace(backend=lambda: backend or "tensorflow"))
        monkeypatch.setitem(sys.modules, "keras", keras)  # type: ignore[arg-type]
    monkeypatch.setattr(task_registry, "require_installed", lambda _: None)
    if backend in ("tensorflow", ""):
        assert task_registry.usable(Rows, "mine:Rows", "auto") is Rows
    else:
        with pytest.raises(UsageError, match=f"Keras runs on the {backend} backend"):
            task_registry.usable(Rows, "mine:Rows", "auto")

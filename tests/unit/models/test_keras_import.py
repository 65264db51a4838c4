"""What `prepare_keras` puts off is not imported for training, and is there for whoever asks for it."""

import subprocess
import sys

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

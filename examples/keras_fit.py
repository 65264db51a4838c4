"""Your own Keras script, made distributed in three lines (marked 1, 2, 3).

    python examples/keras_fit.py                       # one process
    mpirun -np 2 python examples/keras_fit.py          # two workers, or: horovodrun --gloo -np 2 python ...

Trains on scikit-learn's handwritten digits and prints the test accuracy, about 0.96 at any number of workers.
"""

from __future__ import annotations

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import hvdtrain.keras as hvd

GLOBAL_BATCH = 64


def main() -> None:
    hvd.init()  # 1
    keras.utils.set_random_seed(hvd.rank() + 1)  # each rank shuffles its own samples

    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x.astype("float32") / 16, y, test_size=400, random_state=0)

    # Each rank takes its own samples, and equally many of them, since every step needs every rank.
    own_train = slice(hvd.rank(), len(x_train) // hvd.size() * hvd.size(), hvd.size())
    own_test = slice(hvd.rank(), None, hvd.size())

    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(5e-3)),  # 2
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    history = model.fit(
        x_train[own_train],
        y_train[own_train],
        validation_data=(x_test[own_test], y_test[own_test]),
        batch_size=GLOBAL_BATCH // hvd.size(),
        epochs=8,
        verbose=2 if hvd.rank() == 0 else 0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],  # 3
    )
    hvd.assert_in_sync(model)
    if hvd.rank() == 0:
        print(f"{hvd.size()} worker(s): test accuracy {history.history['val_accuracy'][-1]:.4f}")


if __name__ == "__main__":
    main()

"""The same task in Keras 3: horovodrun -np 2 python -m hvdtrain --task wine_keras:Wine --data.dir DIR"""

import keras
import numpy as np
import tensorflow as tf

import hvdtrain
from data_sharding.example import decode


class Wine(hvdtrain.Task):
    framework = "tensorflow"
    defaults = hvdtrain.TaskDefaults(epochs=20, global_batch_size=32, lr=0.01)
    needs_data_dir = True
    label_feature = "y"

    def __init__(self, width: int = 32):
        self.width = width

    def open_data(self, data):
        return hvdtrain.Splits(
            train=data.catalog("train-*.tfrecord"),
            validation=data.catalog("validation-*.tfrecord"),
        )

    def decode(self, records):
        rows = [decode(record) for record in records]
        return {"x": np.stack([row["x"] for row in rows]), "y": np.concatenate([row["y"] for row in rows])}

    def build_model(self):
        layers = keras.layers
        return keras.Sequential([keras.Input((13,)), layers.Dense(self.width, activation="relu"), layers.Dense(3)])

    def build_optimizer(self, model, lr):
        return keras.optimizers.AdamW(lr)

    def measure(self, model, batch):
        logits = model(batch["x"])
        return {
            "loss": tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch["y"], logits=logits),
            "accuracy": tf.cast(tf.equal(tf.argmax(logits, 1), batch["y"]), tf.float32),
        }

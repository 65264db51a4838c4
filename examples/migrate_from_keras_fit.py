"""From Keras `model.fit` on one machine to a task on many. (To keep `fit` itself, see keras_fit.py: three lines.)

python wine_records.py wine
horovodrun -np 2 python -m hvdtrain --task migrate_from_keras_fit:Wine --data.dir wine

in the old script                                        now
model = keras.Sequential(…)                              build_model()
model.compile(optimizer=AdamW(1e-2), …)                  build_optimizer(), or --optimizer adamw; --lr 0.01
loss="sparse_categorical_crossentropy", metrics=[…]      measure(): one value per sample
tf.data.TFRecordDataset(…).map(parse).shuffle().batch()  open_data() and decode()
model.fit(epochs=20, validation_data=…)                  --epochs 20
ModelCheckpoint, BackupAndRestore                        nothing: start the same command with --output-dir again
model.load_weights("old.weights.h5")                     --init-weights old.weights.h5, or old.keras
model.save("wine.keras")                                 hvdtrain export RUN --format keras
"""

import keras
import numpy as np
import tensorflow as tf

import hvdtrain
from data_sharding.example import decode


class Wine(hvdtrain.Task):
    framework = "tensorflow"
    defaults = hvdtrain.TaskDefaults(epochs=20, global_batch_size=32, lr=0.01)
    needs_data_dir = True

    def open_data(self, data):  # was: tf.data.TFRecordDataset(tf.io.gfile.glob("wine/train-*"))
        return hvdtrain.Splits(data.catalog("train-*.tfrecord"), data.catalog("validation-*.tfrecord"))

    def decode(self, records):  # was: dataset.map(tf.io.parse_single_example)
        rows = [decode(record) for record in records]
        return {"x": np.stack([row["x"] for row in rows]), "y": np.concatenate([row["y"] for row in rows])}

    def build_model(self):
        return keras.Sequential([keras.Input((13,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(3)])

    def build_optimizer(self, model, lr):
        return keras.optimizers.AdamW(lr)

    def measure(self, model, batch):  # was: compile(loss=..., metrics=["accuracy"])
        logits = model(batch["x"])
        return {
            "loss": tf.nn.sparse_softmax_cross_entropy_with_logits(labels=batch["y"], logits=logits),
            "accuracy": tf.cast(tf.equal(tf.argmax(logits, 1), batch["y"]), tf.float32),
        }

"""A TensorFlow 2 loop with hvdtrain.tensorflow for horovod.tensorflow: horovodrun -np 2 python tensorflow_loop.py

All workers train the same weights as one process does with the whole batch.
"""

import keras
import numpy as np
import tensorflow as tf

import hvdtrain.tensorflow as hvd

hvd.init()
rows = np.random.default_rng(1).normal(size=(512, 8)).astype("float32")
labels = (rows.sum(1) > 0).astype("int64")
part = slice(hvd.rank(), None, hvd.size())
batches = tf.data.Dataset.from_tensor_slices((rows[part], labels[part])).batch(32 // hvd.size(), drop_remainder=True)

keras.utils.set_random_seed(1)
model = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(16), hvd.SyncBatchNormalization(), keras.layers.Dense(2)]
)
optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
optimizer.build(model.trainable_variables)
hvd.broadcast_variables([*model.weights, *optimizer.variables], root_rank=0)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    return loss


for _ in range(5):
    losses = [step(x, y) for x, y in batches]
mean = hvd.allreduce(tf.reduce_mean(losses), name="loss")
sums = hvd.allgather(tf.reduce_sum([tf.reduce_sum(weight) for weight in model.trainable_variables])[None], name="sums")
assert len(set(sums.numpy())) == 1, "workers have different weights"
if hvd.rank() == 0:
    print(f"loss {mean:.4f} on {hvd.size()} workers")

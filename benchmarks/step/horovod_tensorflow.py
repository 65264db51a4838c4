"""What one writes by hand with Horovod in TensorFlow: a tf.function around a tape.

Horovod's tape takes no variables of Keras 3, so it is given their values.
"""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

from benchmarks.step import hand_protocol, networks_keras
from benchmarks.step.workload import LR, SEED, inputs, labels, own_ids


def main() -> None:
    """Train on one batch."""
    options = hand_protocol.parse()
    hvd.init()
    keras.utils.set_random_seed(SEED)
    model = networks_keras.build(options.model)
    optimizer = keras.optimizers.SGD(LR)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables([variable.value for variable in model.variables], root_rank=0)
    ids = own_ids(options.model, hvd.rank(), hvd.size())
    x, y = tf.constant(inputs(options.model, ids)), tf.constant(labels(ids))

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    def mean(own: float) -> float:
        return float(hvd.allreduce(tf.constant(own, tf.float64), name="loss").numpy())

    hand_protocol.run(options, step, lambda loss: float(loss.numpy()), mean, hvd.rank())
    hvd.shutdown()


if __name__ == "__main__":
    main()

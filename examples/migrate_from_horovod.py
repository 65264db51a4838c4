"""From a plain Horovod script to a task, with the same learning rates:

    python wine_records.py wine
    horovodrun -np 2 python -m hvdtrain --task migrate_from_horovod:Wine --data.dir wine \\
        --batch-size 16 --lr 0.01 --lr-scaling linear --reference-batch-size 16 --warmup-epochs 2

    in the old script                                        now
    hvd.init(), torch.cuda.set_device(hvd.local_rank())      nothing
    DistributedSampler(num_replicas=hvd.size(), …)           nothing: the plan reads each record once an epoch
    lr * hvd.size()                                          --lr-scaling linear --reference-batch-size BATCH_OF_ONE_GPU
    LearningRateWarmupCallback(warmup_epochs=2)              --warmup-epochs 2
    hvd.DistributedOptimizer(optimizer, named_parameters=…)  nothing: build_optimizer() returns the bare optimizer
    backward_passes_per_step=4                               --accumulate-steps 4
    compression=hvd.Compression.fp16, op=hvd.Adasum          --compression fp16, --reduce-op adasum
    hvd.broadcast_parameters, broadcast_optimizer_state      nothing: and it is proved that all workers are equal
    hvd.allreduce(accuracy)                                  nothing: exact, also where workers have unequal shares
    if hvd.rank() == 0: torch.save(…), resume by hand        nothing: start the same command with --output-dir again
"""

import numpy as np
import torch

import hvdtrain
from data_sharding.example import decode


class Wine(hvdtrain.Task):
    framework = "torch"
    defaults = hvdtrain.TaskDefaults(epochs=20, global_batch_size=32, lr=0.01)
    needs_data_dir = True

    def open_data(self, data):
        return hvdtrain.Splits(data.catalog("train-*.tfrecord"), data.catalog("validation-*.tfrecord"))

    def decode(self, records):
        rows = [decode(record) for record in records]
        return {"x": np.stack([row["x"] for row in rows]), "y": np.concatenate([row["y"] for row in rows])}

    def build_model(self):  # was followed by: hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return torch.nn.Sequential(torch.nn.Linear(13, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))

    def build_optimizer(self, model, lr):  # was: hvd.DistributedOptimizer(SGD(..., lr=0.01 * hvd.size()), ...)
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def measure(self, model, batch):  # was: loss = cross_entropy(...); loss.backward(); optimizer.step()
        logits = model(batch["x"])
        return {
            "loss": torch.nn.functional.cross_entropy(logits, batch["y"], reduction="none"),
            "accuracy": (logits.argmax(1) == batch["y"]).float(),
        }

"""From a PyTorch DistributedDataParallel script to a task:

python wine_records.py wine
horovodrun -np 2 python -m hvdtrain --task migrate_from_ddp:Wine --data.dir wine

in the old script                                        now
dist.init_process_group, set_device, destroy…            nothing: the launcher says who is who
DistributedSampler, sampler.set_epoch(epoch)             nothing: the plan reads each record once an epoch
DistributedDataParallel(model)                           nothing: build_model() returns the bare model
for epoch …: for batch …: zero_grad, backward, step      nothing: --epochs, --lr, --precision, --max-grad-norm
if rank == 0: torch.save(model.module.state_dict(), …)   hvdtrain export RUN --format state-dict [--prefix module.]
model.load_state_dict(torch.load("old.pt"))              --init-weights old.pt, with "module." in its names or not
dist.all_reduce(correct); correct / total                nothing: measure() returns values of samples
"""

import numpy as np
import torch

import hvdtrain
from data_sharding.example import decode


class Wine(hvdtrain.Task):
    framework = "torch"
    defaults = hvdtrain.TaskDefaults(epochs=20, global_batch_size=32, lr=0.01)  # was: per-rank batch × world size
    needs_data_dir = True

    def open_data(self, data):  # was: train_set, val_set = WineDataset(...), and a DistributedSampler for each
        return hvdtrain.Splits(data.catalog("train-*.tfrecord"), data.catalog("validation-*.tfrecord"))

    def decode(self, records):  # was: WineDataset.__getitem__ and the DataLoader's collate_fn
        rows = [decode(record) for record in records]
        return {"x": np.stack([row["x"] for row in rows]), "y": np.concatenate([row["y"] for row in rows])}

    def build_model(self):  # was: DistributedDataParallel(Net().to(rank), device_ids=[rank])
        return torch.nn.Sequential(torch.nn.Linear(13, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))

    def build_optimizer(self, model, lr):
        return torch.optim.AdamW(model.parameters(), lr=lr)

    def measure(self, model, batch):  # was: the loop's forward pass; one value per sample instead of the batch's mean
        logits = model(batch["x"])
        return {
            "loss": torch.nn.functional.cross_entropy(logits, batch["y"], reduction="none"),
            "accuracy": (logits.argmax(1) == batch["y"]).float(),
        }

"""A script for torch's DistributedDataParallel with its imports changed: horovodrun -np 2 python ddp_loop.py

Under torchrun, Slurm and mpirun it runs too: ranks are read from the variables of any launcher.
"""

import torch

import hvdtrain.torch.distributed as dist
from hvdtrain.torch import DistributedDataParallel as DDP  # noqa: N817  its usual name
from hvdtrain.torch.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(1)
features = torch.randn(512, 8)
labels = (features.sum(1) > 0).long()
samples = torch.utils.data.TensorDataset(features, labels)
sampler = DistributedSampler(samples)
batches = torch.utils.data.DataLoader(samples, batch_size=32 // dist.get_world_size(), sampler=sampler)

model = DDP(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
for epoch in range(5):
    sampler.set_epoch(epoch)
    for x, y in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

total = loss.detach().clone()
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(f"loss {total / dist.get_world_size():.4f} on {dist.get_world_size()} workers")
dist.destroy_process_group()

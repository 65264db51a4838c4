"""A plain Horovod script, which has nothing of hvdtrain: horovodrun -np 2 python plain_horovod.py"""

import horovod.torch as hvd
import torch

hvd.init()
torch.manual_seed(1)
features = torch.randn(512, 8)
labels = (features.sum(1) > 0).long()
own = slice(hvd.rank(), None, hvd.size())

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

for _ in range(50):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(features[own]), labels[own])
    loss.backward()
    optimizer.step()

mean = float(hvd.allreduce(loss.detach(), name="loss"))
if hvd.rank() == 0:
    print(f"loss {mean:.4f} on {hvd.size()} workers")
assert mean < 0.3

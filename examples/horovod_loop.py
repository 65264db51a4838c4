"""A Horovod script with hvdtrain.torch in the place of horovod.torch: horovodrun -np 2 python horovod_loop.py

Beside Horovod's names it has what Horovod lacks: a checkpoint, agreed requests to stop, exact means, a run folder.
Started again, it goes on from its checkpoint, with any number of workers.
"""

import sys

import torch

import hvdtrain.torch as hvd

hvd.init()
torch.manual_seed(1)
features = torch.randn(512, 8)
labels = (features.sum(1) > 0).long()
batches = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(features, labels),
    batch_size=32 // hvd.size(),
    sampler=(sampler := hvd.DistributedSampler(range(512))),
)

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
checkpoint = hvd.Checkpoint("loop/checkpoints", model=model, optimizer=optimizer)
start = checkpoint.restore()  # all workers now have the weights of rank 0, or those of the checkpoint

loss_mean = hvd.Mean()
with hvd.run("loop", config={"lr": 0.5, "batch_size": 32}, step=start.step) as run:
    for epoch in range(start.step, 5):
        sampler.set_epoch(epoch)
        for x, y in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()
            loss_mean.update(loss, len(x))
            if hvd.stop_requested():
                checkpoint.save(epoch, wait=True)
                sys.exit(hvd.RESUMABLE)
        metrics = run.log(epoch + 1, epoch=epoch, loss=loss_mean)
        checkpoint.save(epoch + 1)
checkpoint.wait()
hvd.assert_equal(model, optimizer)
if hvd.rank() == 0 and start.step < 5:
    print(f"loss {metrics['loss']:.4f} on {hvd.size()} workers")

"""An Accelerate loop with hvdtrain.torch: horovodrun -np 2 python migrate_from_accelerate.py

docs/move-here/lightning.md shows the script before the move. Started again, it goes on from its checkpoint.
"""

from contextlib import nullcontext

import torch

import hvdtrain.torch as hvd

EPOCHS = 4


def samples(count, seed):  # instead of your own
    features = torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.TensorDataset(features, (features.sum(1) > 0).long())


def train():
    hvd.init()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    train_set, eval_set = samples(2048, 1), samples(500, 2)
    train_loader = torch.utils.data.DataLoader(train_set, batch_size=16, sampler=hvd.DistributedSampler(train_set))
    own_part = torch.utils.data.Subset(eval_set, range(hvd.rank(), len(eval_set), hvd.size()))
    eval_loader = torch.utils.data.DataLoader(own_part, batch_size=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    updates = EPOCHS * len(train_loader) // 2
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, updates)
    model = hvd.DistributedDataParallel(model)
    checkpoint = hvd.Checkpoint("checkpoints", model=model, optimizer=optimizer, scheduler=scheduler)
    accuracy = hvd.Mean()
    for epoch in range(checkpoint.restore().step, EPOCHS):
        train_loader.sampler.set_epoch(epoch)
        model.train()
        for number, (x, y) in enumerate(train_loader, 1):
            is_update = number % 2 == 0
            with nullcontext() if is_update else model.no_sync():
                loss = torch.nn.functional.cross_entropy(model(x), y)
                (loss / 2).backward()
            if is_update:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        for x, y in eval_loader:
            with torch.no_grad():
                predictions = model(x).argmax(1)
            accuracy.update((predictions == y).float().mean(), len(y))
        mean = accuracy.compute()
        accuracy.reset()
        if hvd.rank() == 0:
            print(f"epoch {epoch}: accuracy {mean:.4f}")
        checkpoint.save(epoch + 1)
    checkpoint.wait()
    hvd.shutdown()


if __name__ == "__main__":
    train()

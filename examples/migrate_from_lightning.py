"""A LightningModule with a loop in the place of `Trainer.fit`: horovodrun -np 2 python migrate_from_lightning.py

docs/move-here/lightning.md shows the script before the move. Started again, it goes on from its checkpoint.
"""

import torch
from torch.nn.functional import cross_entropy

import hvdtrain.torch as hvd


def samples(count, seed):  # instead of your own
    features = torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.TensorDataset(features, (features.sum(1) > 0).long())


class Classifier(torch.nn.Module):
    def __init__(self, lr=0.01):
        super().__init__()
        self.lr = lr
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))

    def training_step(self, batch):
        x, y = batch
        return cross_entropy(self.net(x), y)

    def validation_step(self, batch):
        x, y = batch
        return (self.net(x).argmax(1) == y).float().mean()

    def configure_optimizers(self):
        optimizer = hvd.DistributedOptimizer(torch.optim.AdamW(self.parameters(), self.lr), self.named_parameters())
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def fit(model, train_loader, val_loader, max_epochs, gradient_clip_val):
    [optimizer], [scheduler] = model.configure_optimizers()
    checkpoint = hvd.Checkpoint("classifier/checkpoints", model=model, optimizer=optimizer, scheduler=scheduler)
    start = checkpoint.restore()
    loss_mean, accuracy = hvd.Mean(), hvd.Mean()
    with hvd.run("classifier", step=start.step) as run:
        for epoch in range(start.step, max_epochs):
            train_loader.sampler.set_epoch(epoch)
            model.train()
            for batch in train_loader:
                optimizer.zero_grad()
                loss = model.training_step(batch)
                loss.backward()
                optimizer.synchronize()
                torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clip_val)
                with optimizer.skip_synchronize():
                    optimizer.step()
                loss_mean.update(loss, len(batch[0]))
            scheduler.step()
            model.eval()
            with torch.no_grad():
                for batch in val_loader:
                    accuracy.update(model.validation_step(batch), len(batch[0]))
            run.log(epoch + 1, epoch=epoch, loss=loss_mean, accuracy=accuracy)
            checkpoint.save(epoch + 1)
    checkpoint.wait()


if __name__ == "__main__":
    hvd.init()
    torch.manual_seed(1)
    train_set, val_set = samples(2048, 1), samples(500, 2)
    train_loader = torch.utils.data.DataLoader(train_set, batch_size=16, sampler=hvd.DistributedSampler(train_set))
    val_loader = torch.utils.data.DataLoader(
        val_set, batch_size=64, sampler=hvd.DistributedSampler(val_set, shuffle=False)
    )
    fit(Classifier(), train_loader, val_loader, max_epochs=4, gradient_clip_val=1.0)

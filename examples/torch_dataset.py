"""A task on a torch Dataset, as it is: horovodrun -np 2 python -m hvdtrain --task torch_dataset:OnDataset"""

import numpy as np
import torch
from sklearn.datasets import load_digits

import hvdtrain


class Digits(torch.utils.data.Dataset):  # instead of your own, or torchvision's
    def __init__(self, train):
        digits = load_digits()
        part = (np.arange(len(digits.target)) % 5 == 0) != train  # every fifth for validation
        self.images, self.labels, self.train = digits.images[part], digits.target[part], train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = torch.tensor(self.images[index], dtype=torch.float32) / 16
        if self.train:
            image = image + 0.05 * torch.randn(8, 8)  # the same noise with any number of workers
        return image, int(self.labels[index])


class OnDataset(hvdtrain.Task):
    framework = "torch"
    defaults = hvdtrain.TaskDefaults(epochs=10, global_batch_size=48, lr=0.01)

    def open_data(self, data):
        parts = [data.dataset(Digits(train), names=("image", "label"), labels="labels") for train in (True, False)]
        return hvdtrain.Splits(*parts)

    def build_model(self):
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        )

    def build_optimizer(self, model, lr):
        return torch.optim.Adam(model.parameters(), lr=lr)

    def measure(self, model, batch):
        logits = model(batch["image"])
        return {
            "loss": torch.nn.functional.cross_entropy(logits, batch["label"], reduction="none"),
            "accuracy": (logits.argmax(1) == batch["label"]).float(),
        }

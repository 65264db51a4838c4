"""The built-in tasks in PyTorch."""

import functools
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from hvdtrain.models.torch import zoo
from hvdtrain.models.torch.zoo import PackedTransformer, Transformer
from hvdtrain.tasks.digits import CLASSES, SIDE, Digits
from hvdtrain.tasks.pictures.cifar10_mnist import Cifar10, Mnist
from hvdtrain.tasks.pictures.imagenet import ImageNet
from hvdtrain.tasks.pictures.picture_task import Pictures
from hvdtrain.tasks.pictures.synthetic import Synthetic
from hvdtrain.tasks.text import NOTHING, SYMBOLS, Text


class TorchDigits(Digits):
    """The digits by a small CNN."""

    framework: ClassVar[str] = "torch"

    def build_model(self) -> nn.Module:
        return zoo.small_cnn(SIDE, 1, CLASSES, self.width)

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=lr)

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        logits = model(batch["image"].permute(0, 3, 1, 2))
        loss = functional.cross_entropy(logits, batch["label"], reduction="none")
        return {"loss": loss, "accuracy": (logits.argmax(1) == batch["label"]).float()}


class TorchText(Text):
    """Text by a transformer, trained by AdamW."""

    framework: ClassVar[str] = "torch"

    def build_model(self) -> nn.Module:
        kind = PackedTransformer if self.pack else Transformer
        return kind(SYMBOLS, self.context, self.width, self.heads, self.blocks)

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        matrices = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim == 1]
        groups = [{"params": matrices, "weight_decay": self.weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8)

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """ "loss": nats a byte; "accuracy": share of bytes that the model would have guessed."""
        logits, following = model(*self.inputs(batch)), batch["next"]
        count = (following != NOTHING).sum(1)
        losses = functional.cross_entropy(logits.transpose(1, 2), following, ignore_index=NOTHING, reduction="none")
        right = (logits.argmax(2) == following).sum(1)  # never where there is nothing to predict
        return {"loss": losses.sum(1) / count, "accuracy": right / count}


class TorchPictures(Pictures):
    """Pictures by models of torchvision, trained by SGD with momentum."""

    framework: ClassVar[str] = "torch"

    @classmethod
    def model_names(cls) -> Sequence[str]:
        return zoo.model_names()

    def build_model(self) -> nn.Module:
        return zoo.build_model(self.model, self.classes, self.side)

    def build_optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=self.momentum, weight_decay=self.weight_decay)

    def measure(self, model: nn.Module, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        labels = batch["label"]
        logits = model(_for_filters(model, self._normalized(batch["image"])))
        loss = functional.cross_entropy(logits, batch.get("target", labels), reduction="none")
        # How many classes the model prefers to the right one: the same for ties in both frameworks.
        before = (logits > logits.gather(1, labels[:, None])).sum(1)
        return {"loss": loss, "accuracy": (before < 1).float(), "top5": (before < 5).float()}

    def _normalized(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 [n, H, W, 3] to float32 [n, 3, H, W], in channels-last order."""
        device = images.device
        if device not in self._constants:  # copying them in each step would make each step wait for the one before
            mean, std = torch.tensor(self.mean, device=device), torch.tensor(self.std, device=device)
            self._constants[device] = mean * 255, std * 255
        mean, std = self._constants[device]
        return ((images.float() - mean) / std).permute(0, 3, 1, 2)

    @functools.cached_property
    def _constants(self) -> dict[torch.device, tuple[torch.Tensor, torch.Tensor]]:
        """Mean and deviation of bytes, on each device."""
        return {}


def _for_filters(model: nn.Module, pictures: torch.Tensor) -> torch.Tensor:
    """`pictures` in the order of the model's filters: with another one, each layer reorders its own, forth and back.

    On GPUs as they are: convolutions there prefer channels last.
    """
    if pictures.is_cuda or not isinstance(model, nn.Module):
        return pictures
    filters = next((parameter for parameter in model.parameters() if parameter.ndim == 4), None)
    if filters is None or filters.is_contiguous():
        return pictures.clone(memory_format=torch.contiguous_format)  # of one channel, contiguous() copies nothing
    return pictures


class TorchCifar10(TorchPictures, Cifar10):
    """CIFAR-10 in PyTorch."""


class TorchMnist(TorchPictures, Mnist):
    """MNIST in PyTorch."""


class TorchImageNet(TorchPictures, ImageNet):
    """Photos in PyTorch."""


class TorchSynthetic(TorchPictures, Synthetic):
    """Random pixels in PyTorch."""

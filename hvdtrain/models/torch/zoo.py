"""Classification models of torchvision by name, fitted to classes and the size of pictures; and a small transformer."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hvdtrain.errors import UsageError
from hvdtrain.models import SMALL_CNN, SMALL_SIDE, refused_side, require_side_of_small_cnn
from hvdtrain.models.torchvision_import import import_torchvision

_AUXILIARY_HEADS = ("googlenet", "inception_v3")


def model_names() -> Sequence[str]:
    """All of them. Raises `UsageError` if torchvision is not installed."""
    models = _torchvision_models()
    return (SMALL_CNN, *models.list_models(module=models))


def build_model(name: str, classes: int, side: int) -> nn.Module:
    """A new model with fresh weights: float32 [n, 3, side, side] to logits [n, classes].

    ResNets for pictures up to `SMALL_SIDE` begin with a 3×3 convolution of stride 1 and no pooling; Inception and
    GoogLeNet come without their auxiliary heads.

    Raises `UsageError`: the model takes no pictures of this size, or torchvision is not installed.
    """
    if name == SMALL_CNN:
        require_side_of_small_cnn(side)
        return small_cnn(side, 3, classes)
    models = _torchvision_models()
    with _refusing(name, side):
        model: nn.Module = models.get_model(name, weights=None, num_classes=classes, **_options(name, side))
    if side <= SMALL_SIDE:
        _give_small_stem(model)
    _require_fit(model, name, side)
    return model


def _options(name: str, side: int) -> dict[str, Any]:
    if name in _AUXILIARY_HEADS:
        return {"aux_logits": False, "init_weights": True}
    return {"image_size": side} if name.startswith("vit_") else {}


def _give_small_stem(model: nn.Module) -> None:
    if not isinstance(model, _torchvision_models().ResNet):
        return
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")  # as torchvision's own
    model.maxpool = nn.Identity()


def _require_fit(model: nn.Module, name: str, side: int) -> None:
    """Try one black picture: only the model knows what it can take."""
    model.eval()
    with _refusing(name, side), torch.no_grad():
        model(torch.zeros(1, 3, side, side))
    model.train()


@contextmanager
def _refusing(name: str, side: int) -> Iterator[None]:
    """What a model says of pictures that it does not take, in our words."""
    try:
        yield
    except (RuntimeError, AssertionError, ValueError) as error:
        raise refused_side(name, side, str(error)) from error


def _torchvision_models() -> Any:
    try:
        return import_torchvision().models
    except ModuleNotFoundError as error:
        raise UsageError(
            "torchvision is not installed.",
            "The models that --model names in torch are torchvision's.",
            f"pip install 'hvdtrain[torchvision]', or --model {SMALL_CNN}, which needs none.",
        ) from error


class FlattenChannelsLast(nn.Module):
    """[n, C, H, W] to [n, H·W·C], the order in which Keras flattens: so weights behind it fit both frameworks."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features.permute(0, 2, 3, 1).flatten(1)


def small_cnn(side: int, channels: int, classes: int, width: int = 32) -> nn.Sequential:
    """Two 3×3 convolutions, a pooling, two dense layers: float32 [n, channels, side, side] to logits [n, classes].

    Layers with weights are named as those of `hvdtrain.models.keras.zoo`.
    """
    layers = {
        "conv1": nn.Conv2d(channels, width, 3, padding=1),
        "relu1": nn.ReLU(),
        "conv2": nn.Conv2d(width, 2 * width, 3, padding=1),
        "relu2": nn.ReLU(),
        "pool": nn.MaxPool2d(2),
        "flatten": FlattenChannelsLast(),
        "hidden": nn.Linear(2 * width * (side // 2) ** 2, 128),
        "relu3": nn.ReLU(),
        "logits": nn.Linear(128, classes),
    }
    return nn.Sequential(OrderedDict(layers))


class Transformer(nn.Module):
    """int [n, length] to logits float32 [n, length, symbols]; each position sees only itself and earlier ones.

    GPT-2's architecture (Radford et al. 2019): normalization before each part, learnt positions. Layers with weights
    are named as those of `hvdtrain.models.keras.zoo`.
    """

    def __init__(self, symbols: int, context: int, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(symbols, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.logits = nn.Linear(width, symbols)
        self.apply(_initialize)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        places = torch.arange(seen.shape[1], device=seen.device)
        features = self.symbols(seen) + self.places(places)
        for block in self.blocks:
            features = block(features)
        logits: torch.Tensor = self.logits(self.norm(features))
        return logits


class PackedTransformer(Transformer):
    """As `Transformer`, for rows of several sequences: each position sees only its own one.

    int [n, length] each: symbols, places within their sequences, and which sequence of the row each belongs to.
    """

    def forward(  # type: ignore[override]
        self, seen: torch.Tensor, positions: torch.Tensor, segments: torch.Tensor
    ) -> torch.Tensor:
        earlier = torch.ones(seen.shape[1], seen.shape[1], dtype=torch.bool, device=seen.device).tril()
        allowed = (segments[:, None, :, None] == segments[:, None, None, :]) & earlier
        features = self.symbols(seen) + self.places(positions)
        for block in self.blocks:
            features = block(features, allowed)
        logits: torch.Tensor = self.logits(self.norm(features))
        return logits


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, features: torch.Tensor, allowed: torch.Tensor | None = None) -> torch.Tensor:
        """`allowed`: bool [n, 1, length, length], which places each place sees; None: itself and earlier ones."""
        features = features + self.attended(self._attention(self.query_key_value(self.norm1(features)), allowed))
        hidden = functional.gelu(self.wide(self.norm2(features)), approximate="tanh")
        narrowed: torch.Tensor = self.narrow(hidden)
        return features + narrowed

    def _attention(self, joined: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
        """[n, length, 3 · width] to [n, length, width]."""
        rows, length, width = joined.shape[0], joined.shape[1], joined.shape[2] // 3
        split = joined.view(rows, length, 3, self._heads, width // self._heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            split[0], split[1], split[2], attn_mask=allowed, is_causal=allowed is None
        )
        return attended.transpose(1, 2).reshape(rows, length, width)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)

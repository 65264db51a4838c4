"""A small decoder-only transformer in PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Transformer(nn.Module):
    """int [n, length] to logits float32 [n, length, symbols], each of which sees its own and earlier places only.

    GPT-2's architecture (Radford et al. 2019): normalization before each part, learnt positions. Layers with weights
    are named as those of `hvdtrain.models.keras.transformer`.
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

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        features = features + self.attended(self._attention(self.query_key_value(self.norm1(features))))
        hidden = functional.gelu(self.wide(self.norm2(features)), approximate="tanh")
        narrowed: torch.Tensor = self.narrow(hidden)
        return features + narrowed

    def _attention(self, joined: torch.Tensor) -> torch.Tensor:
        """[n, length, 3 · width] to [n, length, width]."""
        rows, length, width = joined.shape[0], joined.shape[1], joined.shape[2] // 3
        split = joined.view(rows, length, 3, self._heads, width // self._heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(split[0], split[1], split[2], is_causal=True)
        return attended.transpose(1, 2).reshape(rows, length, width)


def _initialize(module: nn.Module) -> None:
    """GPT-2's: normal of 0.02, biases 0."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)

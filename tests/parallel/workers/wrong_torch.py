"""A task with which one worker computes wrongly: rank WRONG has one flipped bit in a gradient, after some passes."""

from __future__ import annotations

import os

import torch
from torch import nn
from unequal_torch import Unequal

SOUND = 22  # passes, of which the check before the first update makes two


class Wrong(Unequal):
    def build_model(self) -> nn.Module:
        model = super().build_model()
        passes = 0

        def flip(gradient: torch.Tensor) -> torch.Tensor:
            nonlocal passes
            passes += 1
            if passes > SOUND:
                gradient = gradient.clone()
                gradient.view(torch.int32).view(-1)[3] ^= 1
            return gradient

        if os.environ["HOROVOD_RANK"] == os.environ["WRONG"] and os.environ.get("HVDTRAIN_RESTART", "0") == "0":
            model.get_submodule("5").weight.register_hook(flip)
        return model

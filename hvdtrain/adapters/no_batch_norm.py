"""One refusal for both frameworks."""

from __future__ import annotations

from hvdtrain.errors import UsageError


def no_batch_norm(model: str) -> UsageError:
    """For a model, by its class, that has nothing to synchronize."""
    return UsageError(
        f"--sync-batch-norm is given for {model}, which has no BatchNorm.",
        "It would change nothing.",
        "leave it out.",
    )

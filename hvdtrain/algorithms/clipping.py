"""How gradients are limited before an update: one rule for every framework, on gradients that are reduced."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Clipping:
    """Limits the norm of all gradients together, if there is a limit on it.

    Another rule is a field and a method here, and its arithmetic in each framework's `Update._clipped`, the only place
    where gradients are limited.
    """

    max_norm: float | None = None  # the limit (--max-grad-norm); None: there is none
    logs_norm: bool = False  # the norm is computed although nothing but metrics needs it

    @property
    def needs_norm(self) -> bool:
        return self.logs_norm or self.max_norm is not None

    def factor(self, norm: Any, smaller_of: Callable[[Any, Any], Any] = min) -> Any:
        """What all gradients are multiplied by: min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_.

        The small number prevents a division by a norm of exactly 0. Without a limit it is 1.

        Args:
            norm: of all gradients together: a number, or a float scalar of a framework.
            smaller_of: the minimum of such a scalar and a number.
        """
        return 1.0 if self.max_norm is None else smaller_of(self.max_norm / (norm + 1e-6), 1.0)


NO_CLIPPING: Final = Clipping()

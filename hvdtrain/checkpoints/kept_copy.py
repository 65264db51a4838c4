"""The newest checkpoint of this process in its memory: where workers change, rank 0 need not read it from the disk.

It is found by the hashes of its files, as a manifest has them: another checkpoint is never taken for it.
"""

import threading
from collections.abc import Mapping
from typing import Any, Final

from numpy.typing import NDArray

from hvdtrain.named_arrays import NO_STATE, State


class KeptCopy:
    """One state, or none. Threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hashes: Mapping[str, str] = {}
        self._state: Mapping[str, NDArray[Any]] = NO_STATE

    def keep(self, hashes: Mapping[str, str], state: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Keep `state` in place of what was kept, and return that: its memory may be used again. `hashes`: file →
        SHA-256 of its checkpoint, which is on the disk."""
        with self._lock:
            before, self._hashes, self._state = self._state, dict(hashes), state
        return before

    def take(self, hashes: Mapping[str, str]) -> State | None:
        """The state of the checkpoint with these hashes, which is not kept any longer: who has it may change it."""
        with self._lock:
            if not self._state or self._hashes != hashes:
                return None
            state, self._hashes, self._state = self._state, {}, NO_STATE
        return dict(state)

    def forget(self) -> None:
        """Free its memory."""
        self.keep({}, NO_STATE)


kept_copy: Final = KeptCopy()  # of this process

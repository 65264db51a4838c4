"""The most memory a stretch of work took, from Linux's /proc."""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


class MemoryPeak:
    """Peaks from now on, over what there is now.

    Resident memory includes file pages that are mapped: the page cache's, which the kernel takes back at will. Memory
    of one's own (anonymous and shared) does not; its peak is that of the samples taken.
    """

    def __init__(self) -> None:
        _CLEAR_REFS.write_text("5")  # resets VmHWM (man 5 proc)
        self._before = _status()
        self._own = _own(self._before)

    def sample(self) -> None:
        """Look at the memory of one's own."""
        self._own = max(self._own, _own(_status()))

    def result(self) -> dict[str, float]:
        """MiB over the beginning: `peak_rss_mib` and `peak_own_mib`; and `baseline_rss_mib`."""
        return {
            "peak_rss_mib": (_status()["VmHWM"] - self._before["VmRSS"]) / 1024,
            "peak_own_mib": (self._own - _own(self._before)) / 1024,
            "baseline_rss_mib": self._before["VmRSS"] / 1024,
        }


def _status() -> dict[str, int]:
    lines = (line.split() for line in _STATUS.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if words[-1] == "kB"}


def _own(status: dict[str, int]) -> int:
    return status["RssAnon"] + status["RssShmem"]

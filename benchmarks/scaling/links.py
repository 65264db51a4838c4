"""Two hosts on this machine: network namespaces whose link has a limited rate. Linux; needs root, ip and tc."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_NAMES = tuple(f"hvdb{os.getpid() % 10_000}-{host}" for host in range(2))
ADDRESSES = ("10.213.7.1", "10.213.7.2")
_SECONDS = 30


@contextmanager
def limited_link(mbit: int) -> Iterator[tuple[list[str], list[str]]]:
    """Both directions have `mbit` million bits a second. Yields the words before a command for each host."""
    try:
        for name in _NAMES:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("link", "add", _NAMES[0], "netns", _NAMES[0], "type", "veth", "peer", "name", _NAMES[1], "netns", _NAMES[1])
        for name, address in zip(_NAMES, ADDRESSES, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            _ip("-n", name, "link", "set", name, "up")
            limit = ["tbf", "rate", f"{mbit}mbit", "burst", "128kb", "latency", "100ms"]
            _run("tc", "-n", name, "qdisc", "add", "dev", name, "root", *limit)
        one, other = (["ip", "netns", "exec", name] for name in _NAMES)
        yield one, other
    finally:
        for name in _NAMES:
            _ip("netns", "del", name, must=False)


def _ip(*words: str, must: bool = True) -> None:
    _run("ip", *words, must=must)


def _run(*argv: str, must: bool = True) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if must and done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")

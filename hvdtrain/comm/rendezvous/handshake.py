"""How a rank says that it is there, and learns who else is. Before it, nobody is given the store's token.

    rank → server    HVDTRAIN-HELLO-1 NONCE
    server → rank    NONCE PROOF           the server knows job and secret
    rank → server    RANK SIZE HOST PROOF  so does the rank
    server → rank    JSON PROOF            once all are there: every rank's host, and the store's variables;
                                           or, at the deadline, which ranks are missing

A proof is HMAC-SHA256, with the secret as its key, over the job, both nonces, the direction and the line's content. So
an answer cannot be replayed, and another job's server on the same port is told from the right one. Without a secret the
key is empty: strangers who know the job's numbers are not kept out then.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

GREETING = "HVDTRAIN-HELLO-1"
MAX_LINE_BYTES = 1024

_NONCE = re.compile(r"[0-9a-f]{32}")
_HOST = re.compile(r"[A-Za-z0-9_.:-]{1,255}")
_GREETING_LINE = re.compile(rf"{GREETING} ([0-9a-f]{{32}})\n")
_HELLO = re.compile(r"(\d{1,7}) (\d{1,7}) (\S{1,255}) ([0-9a-f]{64})\n", re.ASCII)


class WrongPeerError(Exception):
    """The other side talks another protocol, or does not know job and secret."""


def new_nonce() -> str:
    """32 hexadecimal digits."""
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Keys:
    """What both sides know beforehand."""

    job: str
    secret: bytes

    def proof(self, direction: str, nonces: tuple[str, str], content: str) -> str:
        """64 hexadecimal digits; `nonces` are the rank's, then the server's."""
        text = "\0".join([self.job, direction, *nonces, content]).encode()
        return hmac.new(self.secret, text, hashlib.sha256).hexdigest()

    def require(self, proof: str, direction: str, nonces: tuple[str, str], content: str) -> None:
        """Raise WrongPeerError unless `proof` is right."""
        if not hmac.compare_digest(proof.encode(), self.proof(direction, nonces, content).encode()):
            raise WrongPeerError


def parse_greeting(line: bytes) -> str:
    """The rank's nonce; raises WrongPeerError."""
    match = _GREETING_LINE.fullmatch(line.decode("latin-1"))
    if match is None:
        raise WrongPeerError
    return match[1]


def parse_nonce(line: bytes) -> tuple[str, str]:
    """The server's nonce and proof; raises WrongPeerError."""
    nonce, _, proof = line.decode("latin-1").rstrip("\n").partition(" ")
    if not _NONCE.fullmatch(nonce):
        raise WrongPeerError
    return nonce, proof


@dataclass(frozen=True, slots=True)
class Hello:
    """A rank, the size that it believes in, and the name of its host."""

    rank: int
    size: int
    host: str

    @property
    def content(self) -> str:
        """As it travels."""
        return f"{self.rank} {self.size} {self.host}"

    @classmethod
    def parse(cls, line: bytes) -> tuple[Hello, str]:
        """Hello and proof; raises WrongPeerError."""
        match = _HELLO.fullmatch(line.decode("latin-1"))
        if match is None or not _HOST.fullmatch(match[3]):
            raise WrongPeerError
        return cls(int(match[1]), int(match[2]), match[3]), match[4]


def sane_host(name: str) -> str:
    """`name` as it may travel: what no host name contains is replaced."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:200] or "host"

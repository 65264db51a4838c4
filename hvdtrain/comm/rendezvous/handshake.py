"""How a rank reports that it is present, and learns who else is; only then does it get the store's token.

    rank → server    HVDTRAIN-HELLO-1 NONCE
    server → rank    NONCE PROOF           the server knows job and secret
    rank → server    RANK SIZE HOST PROOF  so does the rank
    server → rank    JSON PROOF            once all are present: the rank's place, and the store's variables;
                                           or, at the deadline, which ranks are missing

A proof is HMAC-SHA256, with the secret as its key, over the job, both nonces, the direction and the line's content. So
an answer cannot be replayed, and another job's server on the same port is recognized. Without a secret the key is
empty: then strangers who know the job's numbers are not kept out.
"""

import asyncio
import hmac
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from hvdtrain.comm.rendezvous.places import Host, places_of
from hvdtrain.comm.rendezvous.server import ends_before

GREETING = "HVDTRAIN-HELLO-1"
MAX_LINE_BYTES = 1024

RANK_SECONDS = 0.005
"""How much longer each side waits for a line of the other, for each rank: all may come at the same time."""

_HELLO_SECONDS = 5.0
_NAMED = 20  # ranks that are named where some did not come in time
_GREETING_LINE = re.compile(rf"{GREETING} ([0-9a-f]{{32}})\n")
_NONCE_LINE = re.compile(r"([0-9a-f]{32}) (.*)\n")
_HELLO = re.compile(r"(\d{1,7}) (\d{1,7}) ([A-Za-z0-9_.:-]{1,255}) ([0-9a-f]{64})\n", re.ASCII)


class WrongPeerError(Exception):
    """The other side talks another protocol, or does not know job and secret."""


def new_nonce() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Keys:
    """What both sides know beforehand."""

    job: str
    secret: bytes

    def proof(self, direction: str, nonces: tuple[str, str], content: str) -> str:
        """64 hexadecimal digits; `nonces` are the rank's, then the server's."""
        text = "\0".join([self.job, direction, *nonces, content]).encode()
        return hmac.digest(self.secret, text, "sha256").hex()

    def require(self, proof: str, direction: str, nonces: tuple[str, str], content: str) -> None:
        """Raise WrongPeerError unless `proof` is right."""
        if not hmac.compare_digest(proof.encode(), self.proof(direction, nonces, content).encode()):
            raise WrongPeerError


def _parsed(pattern: re.Pattern[str], line: bytes) -> re.Match[str]:
    match = pattern.fullmatch(line.decode("latin-1"))
    if match is None:
        raise WrongPeerError
    return match


def parse_nonce(line: bytes) -> tuple[str, str]:
    """The server's nonce and proof; raises WrongPeerError."""
    match = _parsed(_NONCE_LINE, line)
    return match[1], match[2]


@dataclass(frozen=True, slots=True)
class Hello:
    """A rank, the size that it believes in, and the name of its host."""

    rank: int
    size: int
    host: str

    @property
    def content(self) -> str:
        return f"{self.rank} {self.size} {self.host}"

    @classmethod
    def parse(cls, line: bytes) -> tuple["Hello", str]:
        """Hello and proof; raises WrongPeerError."""
        match = _parsed(_HELLO, line)
        return cls(int(match[1]), int(match[2]), match[3]), match[4]


def sane_host(name: str) -> str:
    """`name` as it may be sent: characters that no host name contains are replaced."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:200] or "host"


@dataclass(eq=False)
class Meeting:
    """Rank 0's side: greets ranks until all `size` of them are present, or until `deadline` of `time.monotonic()`, and
    then sends them `store_variables`."""

    keys: Keys
    size: int
    deadline: float
    store_variables: Mapping[str, str] = field(default_factory=dict)
    _present: dict[int, Host] = field(default_factory=dict)
    _all_there: asyncio.Event = field(default_factory=asyncio.Event)
    _places: list[dict[str, str]] = field(default_factory=list)

    @property
    def _line_seconds(self) -> float:
        return _HELLO_SECONDS + RANK_SECONDS * self.size

    async def greet(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection from its first line on."""
        try:
            async with asyncio.timeout(self._line_seconds):
                hello, nonces = await self._identify(first, reader, writer)
        except WrongPeerError:
            return
        if refusal := self._why_refused(hello):
            await self._answer(writer, nonces, {"refused": refusal})
            return
        self._present[hello.rank] = (hello.host, writer.get_extra_info("peername")[0])
        if len(self._present) == self.size:
            self._places = places_of([self._present[rank] for rank in range(self.size)])
            self._all_there.set()
        await self._wait_beside(hello.rank, reader)
        if self._all_there.is_set():
            place = self._places[hello.rank]
            await self._answer(writer, nonces, {"place": place, "store": dict(self.store_variables)})
        else:
            absent = (rank for rank in range(self.size) if rank not in self._present)
            named = list(islice(absent, _NAMED))
            more = self.size - len(self._present) - len(named)
            await self._answer(writer, nonces, {"missing": named, "more": more})

    async def _identify(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Hello, tuple[str, str]]:
        nonces = (_parsed(_GREETING_LINE, first)[1], new_nonce())
        writer.write(f"{nonces[1]} {self.keys.proof('server', nonces, '')}\n".encode())
        await writer.drain()
        hello, proof = Hello.parse(await reader.readuntil(b"\n"))
        self.keys.require(proof, "rank", nonces, hello.content)
        return hello, nonces

    async def _wait_beside(self, rank: int, reader: asyncio.StreamReader) -> None:
        """Until all are present, the deadline, or the end of this rank, which then is absent again."""
        left = max(0.0, self.deadline - time.monotonic())
        if await ends_before(reader, self._all_there.wait(), left) and not self._all_there.is_set():
            del self._present[rank]
            raise EOFError

    def _why_refused(self, hello: Hello) -> str:
        if hello.size != self.size:
            return f"Rank {hello.rank} on {hello.host} believes in {hello.size} ranks, rank 0 in {self.size}."
        if hello.rank >= self.size:
            return f"Rank {hello.rank} on {hello.host} is not below the number of ranks, {self.size}."
        if hello.rank in self._present:
            return f"Rank {hello.rank} on {hello.host} is there already, on {self._present[hello.rank][0]}."
        return ""

    async def _answer(self, writer: asyncio.StreamWriter, nonces: tuple[str, str], content: object) -> None:
        text = json.dumps(content, separators=(",", ":"))
        async with asyncio.timeout(self._line_seconds):
            writer.write(f"{text}\n{self.keys.proof('world', nonces, text)}\n".encode())
            await writer.drain()

"""N clients that only speak the protocols of the rendezvous, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from benchmarks.clients.served import JOB
from hvdtrain.comm.rendezvous.handshake import GREETING, Hello, Keys, new_nonce, parse_nonce

RANKS_PER_HOST: Final = 8
_ADDRESS_BYTES: Final = 150
"""What Gloo puts into the store for each other rank, about."""
_AT_ONCE: Final = 200
"""Connections that are being made: more would overflow the queue of the kernel."""
_LINE: Final = 2**26


class Crowd:
    """Clients of a server: `received` counts the bytes that all of them got."""

    def __init__(self, size: int, place: dict[str, Any]) -> None:
        self.size, self.received = size, 0
        self._port = int(place["port"])
        address, _, token = place["variables"]["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition("/")
        self._path = f"/{token}:{self._port}/global"
        self._connecting = asyncio.Semaphore(_AT_ONCE)

    async def arrive(self) -> None:
        """All put a key of theirs and read another one, for which they wait until all have put."""

        async def one(rank: int) -> None:
            await self._ask("PUT", f"rank_{rank}", b"host")
            await self._ask("GET", "rank_0")

        await self._all(one)

    async def mesh(self) -> None:
        """All requests of Gloo's full mesh; the addresses are made up."""

        async def one(rank: int) -> None:
            await self._ask("PUT", f"rank_{rank}", b"host")
            for lower in range(rank):
                await self._ask("GET", f"rank_{lower}")
            await self._ask("PUT", str(rank), bytes(_ADDRESS_BYTES * self.size))
            for other in range(self.size):
                if other != rank:
                    await self._ask("GET", str(other))

        await self._all(one)
        await self._all(lambda rank: self._ask("DELETE", str(rank)))

    async def meet(self) -> None:
        """All say hello, and learn where Horovod's store is."""
        keys = Keys(JOB, b"")

        async def one(rank: int) -> None:
            reader, writer = await self._connect()
            hello, nonce = Hello(rank, self.size, f"node{rank // RANKS_PER_HOST}.example.org"), new_nonce()
            writer.write(f"{GREETING} {nonce}\n".encode())
            nonces = nonce, parse_nonce(await reader.readline())[0]
            writer.write(f"{hello.content} {keys.proof('rank', nonces, hello.content)}\n".encode())
            answer = await reader.read()
            self.received += len(answer)
            writer.close()

        await self._all(one)

    async def _all(self, do: Callable[[int], Awaitable[None]]) -> None:
        await asyncio.gather(*(do(rank) for rank in range(self.size)))

    async def _ask(self, method: str, key: str, body: bytes = b"") -> None:
        """Raises RuntimeError: it was refused."""
        reader, writer = await self._connect()
        head = f"{method} {self._path}/{key} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        self.received += len(answer)
        if b" 200 " not in answer[:20]:
            raise RuntimeError(f"{method} {key}: {answer[:60]!r}")

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with self._connecting:
            return await asyncio.open_connection("127.0.0.1", self._port, limit=_LINE)

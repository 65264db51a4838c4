"""Rank 0's side of the hello: wait for every rank, then tell all of them who is where."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import final

from hvdtrain.comm.rendezvous.handshake import Hello, Keys, WrongPeerError, new_nonce, parse_greeting
from hvdtrain.comm.rendezvous.placement import Host

_HELLO_SECONDS = 5.0


@final
class Meeting:
    """Greets ranks until all `size` of them are there, or the deadline has come.

    Args:
        keys: job and secret.
        size: number of ranks.
        deadline: on `time.monotonic()`'s clock.
    """

    def __init__(self, keys: Keys, size: int, deadline: float) -> None:
        self.store_variables: Mapping[str, str] = {}
        """What the ranks are told when all are there."""
        self._keys = keys
        self._size = size
        self._deadline = deadline
        self._present: dict[int, Host] = {}
        self._all_there = asyncio.Event()

    async def greet(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection from its first line on."""
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                hello, nonces = await self._identify(first, reader, writer)
        except WrongPeerError:
            return
        if hello.size != self._size or not hello.rank < self._size or hello.rank in self._present:
            await self._answer(writer, nonces, {"refused": self._why_refused(hello)})
            return
        self._present[hello.rank] = (hello.host, writer.get_extra_info("peername")[0])
        if len(self._present) == self._size:
            self._all_there.set()
        await self._wait_beside(hello.rank, reader)
        if self._all_there.is_set():
            hosts = [self._present[rank] for rank in range(self._size)]
            await self._answer(writer, nonces, {"hosts": hosts, "store": dict(self.store_variables)})
        else:
            missing = [rank for rank in range(self._size) if rank not in self._present]
            await self._answer(writer, nonces, {"missing": missing})

    async def _identify(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Hello, tuple[str, str]]:
        nonces = (parse_greeting(first), new_nonce())
        writer.write(f"{nonces[1]} {self._keys.proof('server', nonces, '')}\n".encode())
        await writer.drain()
        hello, proof = Hello.parse(await reader.readuntil(b"\n"))
        self._keys.require(proof, "rank", nonces, hello.content)
        return hello, nonces

    async def _wait_beside(self, rank: int, reader: asyncio.StreamReader) -> None:
        """Until all are there, the deadline, or the end of this rank, which then is there no more."""
        gone = asyncio.ensure_future(reader.read(1))
        complete = asyncio.ensure_future(self._all_there.wait())
        try:
            left = max(0.0, self._deadline - time.monotonic())
            await asyncio.wait({gone, complete}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not self._all_there.is_set():
                del self._present[rank]
                raise EOFError
        finally:
            gone.cancel()
            complete.cancel()

    def _why_refused(self, hello: Hello) -> str:
        if hello.size != self._size:
            return f"Rank {hello.rank} on {hello.host} believes in {hello.size} ranks, rank 0 in {self._size}."
        if hello.rank >= self._size:
            return f"Rank {hello.rank} on {hello.host} is not below the number of ranks, {self._size}."
        return f"Rank {hello.rank} on {hello.host} is there already, on {self._present[hello.rank][0]}."

    async def _answer(self, writer: asyncio.StreamWriter, nonces: tuple[str, str], content: object) -> None:
        text = json.dumps(content, separators=(",", ":"))
        async with asyncio.timeout(_HELLO_SECONDS):
            writer.write(f"{text}\n{self._keys.proof('world', nonces, text)}\n".encode())
            await writer.drain()

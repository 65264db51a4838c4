"""The server at which ranks find each other: Horovod's key-value protocol on one address, with a token, sizes capped.

It runs an event loop in its own thread, so that the launcher or rank 0, which starts it, can continue. Horovod's own
server (horovod.runner.http.http_server) takes everything from everybody, on all interfaces.
"""

import asyncio
import secrets
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Self

from hvdtrain.comm.rendezvous import key_value_store
from hvdtrain.open_files import allow_open_files

REQUEST_SECONDS = 5.0  # A request must be complete within this time after its connection
_RANK_SECONDS = 0.005  # more for each rank: all may come at the same time
_LEAST_BACKLOG = 512

_LAST_ANSWER_SECONDS = 0.5  # for answers that are being sent when the server stops
_STOP_SECONDS = 5.0

Greeter = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves a connection whose first line is not an HTTP request of ours."""


@dataclass(eq=False)
class RendezvousServer:
    """Serves one start of one job of `size` ranks. Raises OSError: on entering, if `host` cannot be listened on."""

    host: str  # address to listen on
    size: int
    port: int = 0  # 0 lets the kernel choose; once it was entered, the port on which it listens
    notify: Callable[[], None] = lambda: None  # called in its thread when `arrived` or `connected` may have changed
    greeter: Greeter | None = None  # serves other connections; without it they are refused
    hold_seconds: float | None = None  # how long a rank is kept waiting for others; None: the launcher limits that

    def __post_init__(self) -> None:
        self._token = secrets.token_urlsafe(24)
        self._store = key_value_store.RendezvousStore(self.size)
        self._changed = asyncio.Condition()
        self._request_seconds = REQUEST_SECONDS + _RANK_SECONDS * self.size
        self._free_connections = 64 + 8 * self.size
        self._transports: weakref.WeakSet[asyncio.WriteTransport] = weakref.WeakSet()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rendezvous", daemon=True)
        self._server: asyncio.Server | None = None
        self._is_abandoned = False

    @property
    def arrived(self) -> frozenset[int]:
        """The ranks that have begun to connect."""
        return frozenset(self._store.arrived())

    @property
    def connected(self) -> frozenset[int]:
        """Those that are connected to all others."""
        return frozenset(self._store.connected)

    @property
    def are_all_connected(self) -> bool:
        """Whether all ranks are; costs the same for any number of them."""
        return len(self._store.connected) == self.size

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead Horovod here. The token in them lets a process take part: keep them off argv."""
        return {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{self.host}:{self.port}/{self._token}",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self.port),
        }

    def abandon(self) -> None:
        """From now on refuse everybody, those that wait too: a rank is lost, and the others would wait for it in vain.
        For any thread."""
        self._is_abandoned = True
        self._loop.call_soon_threadsafe(self._abort_connections)

    def __enter__(self) -> Self:
        allow_open_files(self.size)
        backlog = max(_LEAST_BACKLOG, self.size)  # the kernel has a limit of its own
        listening = asyncio.start_server(
            self._serve, self.host, self.port, limit=key_value_store.LINE_LIMIT, backlog=backlog
        )
        try:
            self._server = self._loop.run_until_complete(listening)
        except OSError:
            self._loop.close()
            raise
        self.port = self._server.sockets[0].getsockname()[1]
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_STOP_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)
        self._loop.close()

    async def _stop(self) -> None:
        # Before the server is closed: asyncio (3.11) loses a connection that was accepted, but not handed over yet.
        until = self._loop.time() + _LAST_ANSWER_SECONDS
        while (others := _other_tasks()) and (left := until - self._loop.time()) > 0:
            await asyncio.wait(others, timeout=left)
        if self._server is not None:
            self._server.close()
        self._abort_connections()
        while others := _other_tasks():
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # one round of the loop, in which the aborted sockets are closed

    def _abort_connections(self) -> None:
        for transport in self._transports:
            transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._transports.add(writer.transport)
        if self._is_abandoned or self._free_connections == 0:
            writer.close()
            return
        self._free_connections -= 1
        try:
            await self._answer(reader, writer)
        except (OSError, ValueError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # the peer is gone, too slow, or talks something else: its connection is closed, and nothing else
        except asyncio.CancelledError:
            pass  # the server stops; asyncio's own callback would log a cancelled handler as an error
        finally:
            self._free_connections += 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._request_seconds):
                first = await reader.readuntil(b"\n")
                is_http = self.greeter is None or b" HTTP/" in first
                request = await key_value_store.read_request(first, reader, self._token) if is_http else None
            if request is None and self.greeter is not None:
                await self.greeter(first, reader, writer)
                return
            answer = await self._carry_out(request, reader) if request is not None else key_value_store.response(400)
        except key_value_store.RefusedError as error:
            answer = key_value_store.response(error.status)
        async with asyncio.timeout(self._request_seconds):
            writer.write(answer)
            await writer.drain()

    async def _carry_out(self, request: key_value_store.Request, reader: asyncio.StreamReader) -> bytes:
        if request.method == "GET":
            if self._store.must_wait(request.scope, request.key):
                # Until every rank has put what the request is about, or the asking one has ended.
                await ends_before(reader, self._until_family_is_complete(request), self.hold_seconds)
            value = self._store.get(request.scope, request.key)
            return key_value_store.response(404) if value is None else key_value_store.response(200, value)
        if request.method == "PUT":
            if self._store.put(request.scope, request.key, request.body):
                async with self._changed:
                    self._changed.notify_all()
        else:
            self._store.delete(request.scope, request.key)
        self.notify()
        return key_value_store.response(200)

    async def _until_family_is_complete(self, request: key_value_store.Request) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._store.must_wait(request.scope, request.key))


async def ends_before(reader: asyncio.StreamReader, event: Coroutine[Any, Any, object], seconds: float | None) -> bool:
    """Wait for `event`, `seconds` at most, or until the peer has ended; returns whether it has."""
    gone, waiting = asyncio.ensure_future(reader.read(1)), asyncio.ensure_future(event)
    try:
        await asyncio.wait({gone, waiting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return gone.done()
    finally:
        gone.cancel()
        waiting.cancel()


def _other_tasks() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}

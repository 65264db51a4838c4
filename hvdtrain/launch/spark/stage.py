"""One barrier stage in a Spark cluster: its tasks hold the places of a job until the first of them ends."""

import hmac
import secrets
import selectors
import socket
import threading
from dataclasses import dataclass, field
from typing import Any

from hvdtrain.launch.spark.seat import seat_task
from hvdtrain.world_channel import LineReader, line_of

_READ_BYTES = 2**16
_BACKLOG = 4096  # tasks that call at the same time
_END_SECONDS = 15.0  # for Spark to end the tasks of a stage


@dataclass(eq=False)
class _Call:
    """A connection that somebody has opened: of a task, once it has said the secret."""

    connection: socket.socket
    facts: dict[str, Any] | None = None
    lines: LineReader = field(default_factory=LineReader)


class BarrierStage:
    """Runs `workers` tasks from now on; `look` is to be called again and again. `spark` is the context, and `address`
    where the tasks call this process; `link_seconds` as of a request."""

    def __init__(self, spark: Any, workers: int, address: tuple[str, str], link_seconds: float) -> None:
        self.ended: BaseException | str = ""  # why it has no places any more, once it has none
        self._spark, self._workers = spark, workers
        self._secret = secrets.token_hex(16)
        bound_to, called = address
        self._listener = socket.create_server((bound_to, 0), backlog=_BACKLOG)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._calls: dict[int, _Call] = {}  # partition → the connection of its task
        self._failure: BaseException | None = None
        task = seat_task((called, self._listener.getsockname()[1]), self._secret, link_seconds)
        self._thread = threading.Thread(target=self._run, args=(task,), name="barrier stage", daemon=True)
        self._thread.start()

    @property
    def facts(self) -> list[dict[str, Any]]:
        """What the tasks have said, in the order of partitions, once all have and as long as all run."""
        is_complete = not self.ended and len(self._calls) == self._workers
        return [self._calls[number].facts or {} for number in sorted(self._calls)] if is_complete else []

    def look(self) -> None:
        """Hear of tasks that have begun or ended."""
        for key, _ in self._selector.select(0):
            if key.fileobj is self._listener:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._selector.register(connection, selectors.EVENT_READ, _Call(connection))
            else:
                self._hear(key.data)
        if not self._thread.is_alive() and not self.ended:
            self.ended = self._failure or "its tasks have ended"

    def tell(self, number: int, order: dict[str, Any]) -> None:
        """Send an order to the task of a partition. Raises OSError: it has ended."""
        self._calls[number].connection.sendall(line_of(order))

    def close(self) -> None:
        """End the tasks."""
        self.ended = self.ended or "it was given up"
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        self._spark.cancelAllJobs()
        self._thread.join(_END_SECONDS)

    def _run(self, task: Any) -> None:
        try:
            self._spark.parallelize(range(self._workers), self._workers).barrier().mapPartitions(task).collect()
        except BaseException as error:  # told to whoever waits for the places, whatever it is
            self._failure = error

    def _hear(self, call: _Call) -> None:
        try:
            data = call.connection.recv(_READ_BYTES)
            heard = call.lines.feed(data)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data, heard = b"", []
        for facts in heard:
            if call.facts is None and hmac.compare_digest(str(facts.pop("secret", "")), self._secret):
                call.facts = facts
                self._calls[facts["number"]] = call
            else:
                data = b""  # a stranger
        if not data:
            self._selector.unregister(call.connection)
            call.connection.close()
            if call.facts is not None:
                self.ended = self.ended or f"task {call.facts['number']} on {call.facts['host']} has ended"

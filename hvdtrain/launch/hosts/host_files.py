"""Files that name hosts: hostfiles and rank tables.

Hostfiles are Open MPI's `a slots=4`, MPICH's and Intel's `a:4`, and plain names, one host a line, comments after #.
Sources: Open MPI's mpirun(1), "Specifying Host Nodes"; MPICH's "Using the Hydra Process Manager", "Hosts file". The MPI
Operator of Kubernetes writes either into /etc/mpi/hostfile.

Rank tables are JSON files that give each rank its server and device, in the form that HCCL made common. Two forms are
read. Version 1.0: `server_list`, each with `server_id` and `device`, a list of `device_id`, `rank_id`. The older one:
`group_list`, each with `instance_list`, each instance one rank: `rank_id`, `server_id` and `devices`. Numbers are
written as strings there; both are taken. Source: the HCCL section of the CANN manual, "rank table file".
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.launch.hosts.host import Host, join_hosts, parse_name_and_slots, parse_slots, require_host_name

KEYS = ("slots", "max_slots")
MAX_BYTES = 16 * 2**20
FORM = (
    'the form is {"status": "completed", "server_list": [{"server_id": "10.0.0.1", "device": '
    '[{"device_id": "0", "rank_id": "0"}]}]}.'
)


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Hosts of a file; UsageError: it cannot be read, line N is none, or a host with slots is there twice."""
    return parse_hostfile(read_text(path, "hostfile"), str(path))


def read_text(path: Path, kind: str) -> str:
    """The text of a file that the user named; `kind` says what it should be."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) <= MAX_BYTES:
            return content.decode()
        reason = f"it is larger than {MAX_BYTES // 2**20} MiB"
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except UnicodeDecodeError:
        reason = "it is not text in UTF-8"
    raise UsageError(f"The {kind} {path} cannot be used.", f"Reason: {reason}.", "check the path.")


def parse_hostfile(text: str, where: str = "the hostfile") -> tuple[Host, ...]:
    """Hosts of a file's text; `where` is what messages call it. Errors as `read_hostfile`."""
    mentions = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            mentions.append(_parse_line(words, f"{where}:{number}: "))
    return join_hosts(mentions, where)


def _parse_line(words: list[str], where: str) -> tuple[str, int | None]:
    if "=" in (word[:1] for word in words[1:]) or any(word.endswith("=") for word in words[1:]):
        fact = f"{where}{' '.join(words)[:80]!r} has spaces around =."
        raise UsageError(fact, "Words are told apart by them.", "write it without, e.g. slots=4.")
    settings = dict(_parse_setting(word, words[0], where) for word in words[1:])
    if "slots" not in settings:
        return parse_name_and_slots(words[0], where)
    # With slots=N no colon has to tell name and slots apart, so an IPv6 address needs no brackets.
    name = words[0][1:-1] if words[0].startswith("[") and words[0].endswith("]") else words[0]
    require_host_name(name, where)
    if settings.get("max_slots", settings["slots"]) < settings["slots"]:
        raise UsageError(
            f"{where}{name} has slots={settings['slots']} and max_slots={settings['max_slots']}.",
            "It cannot run more workers than its most.",
            "make max_slots as large as slots, or leave it out.",
        )
    return name, settings["slots"]


def _parse_setting(word: str, name: str, where: str) -> tuple[str, int]:
    key, equals, value = word.partition("=")
    key = key.lower().replace("-", "_")
    if not equals or key not in KEYS:
        fact = f"{where}{word[:80]!r} is not understood."
        raise UsageError(fact, "A line is a host, and then settings such as slots=4.", did_you_mean(key, KEYS))
    return key, parse_slots(value, name, where)


class _Seat(NamedTuple):
    rank: int
    server: str
    device: int


def read_rank_table(path: Path) -> tuple[Host, ...]:
    """Hosts of a rank table in the order of their ranks, `devices` in the order of their local ranks. Raises
    UsageError: no such file or form; ranks that are not 0 … n-1, each once; a device used twice; a table that is not
    completed; ranks of one server that do not follow each other, which no launcher here can start."""
    return parse_rank_table(read_text(path, "rank table"), str(path))


def parse_rank_table(text: str, where: str = "the rank table") -> tuple[Host, ...]:
    """As `read_rank_table`, from a text; `where` is what messages call it."""
    try:
        table = json.loads(text)
    except json.JSONDecodeError as error:
        raise _wrong(where, f"line {error.lineno} is not JSON: {error.msg}") from None
    except RecursionError:
        raise _wrong(where, "its lists are nested too deeply") from None
    if not isinstance(table, dict):
        raise _wrong(where, "it is not a JSON object")
    if table.get("status", "completed") != "completed":
        raise UsageError(
            f"{where} has the status {table['status']!r}.",
            "Its servers are not all known yet.",
            "wait until whatever writes it says completed.",
        )
    seats = sorted(_seats(table, where))
    for expected, seat in enumerate(seats):
        if seat.rank != expected:
            twice = seat.rank < expected
            raise _wrong(where, f"rank {seat.rank} is there twice" if twice else f"rank {expected} is missing")
    hosts = _hosts(seats, where)
    _require_count(table, "server_count", len(hosts), where)
    return hosts


def _seats(table: dict[str, Any], where: str) -> Iterator[_Seat]:
    if "server_list" in table:
        for server in _objects(table, "server_list", where):
            for device in _objects(server, "device", where):
                yield _seat({**device, "server_id": server.get("server_id")}, where)
    elif "group_list" in table:
        for group in _objects(table, "group_list", where):
            instances = _objects(group, "instance_list", where)
            _require_count(group, "instance_count", len(instances), where)
            for instance in instances:
                devices = _objects(instance, "devices", where)
                if len(devices) != 1:
                    raise _wrong(where, f"rank {instance.get('rank_id')} has {len(devices)} devices, not one")
                yield _seat({**instance, "device_id": devices[0].get("device_id")}, where)
    else:
        raise _wrong(where, "it has neither server_list nor group_list")


def _seat(described: dict[str, Any], where: str) -> _Seat:
    name = described.get("server_id")
    if not isinstance(name, str):
        raise _wrong(where, f"server_id is {name!r}, not a name")
    require_host_name(name, f"{where}: ")
    return _Seat(_number(described, "rank_id", where), name, _number(described, "device_id", where))


def _objects(parent: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    items = parent.get(key)
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise _wrong(where, f"{key} is not a list of objects")
    return items


def _number(parent: dict[str, Any], key: str, where: str) -> int:
    text = str(parent.get(key))
    if not (text.isascii() and text.isdigit()) or len(text) > 6:
        raise _wrong(where, f"{key} is {parent.get(key)!r}, not a number")
    return int(text)


def _require_count(parent: dict[str, Any], key: str, count: int, where: str) -> None:
    if key in parent and _number(parent, key, where) != count:
        raise _wrong(where, f"{key} is {parent[key]}, but there are {count}")


def _hosts(seats: list[_Seat], where: str) -> tuple[Host, ...]:
    devices: dict[str, list[int]] = {}
    for number, seat in enumerate(seats):
        if seat.server in devices and seats[number - 1].server != seat.server:
            raise UsageError(
                f"In {where}, rank {number} is on {seat.server}, rank {number - 1} is not, and lower ones are.",
                "Launchers number the workers of one host after the other.",
                "give each server ranks that follow each other.",
            )
        if seat.device in devices.setdefault(seat.server, []):
            raise _wrong(where, f"device {seat.device} of {seat.server} is there twice")
        devices[seat.server].append(seat.device)
    return tuple(Host(name, len(used), tuple(used)) for name, used in devices.items())


def _wrong(where: str, reason: str) -> UsageError:
    return UsageError(f"{where} is not a rank table.", f"Reason: {reason}.", FORM)

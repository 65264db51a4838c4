"""Hostfiles: Open MPI's `a slots=4`, MPICH's and Intel's `a:4`, and plain names, one host a line, comments after #.

Sources: Open MPI's mpirun(1), "Specifying Host Nodes"; MPICH's "Using the Hydra Process Manager", "Hosts file". The MPI
Operator of Kubernetes writes either into /etc/mpi/hostfile.
"""

from __future__ import annotations

from pathlib import Path

from hvdtrain.errors import UsageError, did_you_mean
from hvdtrain.launch.hosts.host import Host, join_hosts, parse_name_and_slots, parse_slots, require_host_name

KEYS = ("slots", "max_slots")
MAX_BYTES = 16 * 2**20


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Hosts of a file.

    Raises:
        UsageError: the file cannot be read; a line that is none, by its number; a host with slots that is there twice.
    """
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
        raise UsageError(
            f"{where}{' '.join(words)[:80]!r} has spaces around =.",
            "Words are told apart by them.",
            "write it without, e.g. slots=4.",
        )
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
        raise UsageError(
            f"{where}{word[:80]!r} is not understood.",
            "A line is a host, and then settings such as slots=4.",
            did_you_mean(key, KEYS),
        )
    return key, parse_slots(value, name, where)

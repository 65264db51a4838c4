"""Which samples of a tar archive are parts of one sample, whose members do not stand together; and joining them."""

from collections.abc import Iterable
from pathlib import Path

from data_sharding.formats.tar_members import next_member, split_name
from data_sharding.formats.writers import TarWriter
from data_sharding.storage import describe_file, open_source
from data_sharding.storage.torn_maps import watching_maps


class SampleParts:
    """The samples of an archive so far, each added once it is whole."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, frozenset[str]]] = {}
        self._kinds: dict[frozenset[str], frozenset[str]] = {}  # most samples have the same extensions: kept once

    def rest_of(self, key: str, extensions: Iterable[str], number: int) -> int | None:
        """Add a sample, which the caller gives a number. The number of the earlier sample whose rest it is, or None.

        With an extension that the earlier sample of its key has, too, it is another sample of the same key, as in
        webdataset.
        """
        here = frozenset(extensions)
        earlier = self._last.get(key)
        if earlier is not None and here.isdisjoint(earlier[1]):
            here |= earlier[1]
            number = earlier[0]
        self._last[key] = number, self._kinds.setdefault(here, here)
        return number if earlier is not None and number == earlier[0] else None


def join_samples(path: str, target: Path) -> None:
    """Write an archive again, with the members of each sample together at the place of the first. It has no damage."""
    entry = describe_file(path)
    with watching_maps, TarWriter(target) as writer:
        source = open_source(entry)
        position, parts = 0, SampleParts()
        runs: list[tuple[str, dict[str, slice]]] = []
        joined: list[int] = []
        while (member := next_member(source, position, entry.size)) is not None:
            position = member.after
            split = split_name(member.name) if member.is_file else None
            if split is None:
                continue
            if not runs or runs[-1][0] != split[0]:
                runs.append((split[0], {}))
            runs[-1][1][split[1]] = slice(member.data, member.data + member.size)
        for number, (key, spans) in enumerate(runs):
            earlier = parts.rest_of(key, spans, number)
            if earlier is not None:
                runs[earlier][1].update(spans)
            else:
                joined.append(number)
        last = ""
        for number in joined:
            key, spans = runs[number]
            last = key if key != last else f"{key}-{number:08d}"  # what stood between them may have been joined away
            writer.write(last, {extension: source[span] for extension, span in spans.items()})

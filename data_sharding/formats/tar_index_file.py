"""The index files that NVIDIA's wds2idx writes beside tar shards, `a.idx` beside `a.tar`, read instead of all headers.

    v1.2 SAMPLES
    EXTENSION OFFSET SIZE NAME EXTENSION OFFSET SIZE NAME ...     a line for each sample

OFFSET is where a member's content begins. Versions before 1.2 have no names, by which members are put together here,
and a line with a name that has a space cannot be taken apart: then the headers are read. So they are where the index
and the archive differ. What is between the content of two members is read where that is more than one header, and so is
the end of the archive; of the other headers a few are compared. Source: DALI, tools/wds2idx.py.

The index of webdataset's `widsindex` has no offsets, so there is nothing in it that could be used here.
"""

import bisect
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from data_sharding.formats.tar_members import BLOCK, Member, next_member, padded, refusal, split_name
from data_sharding.storage import ByteSource, FileEntry
from data_sharding.storage.redaction import redacted
from data_sharding.storage.side_file import read_if_there

_VERSION: Final = "v1.2"
_COMPARED: Final = 8
"""Members whose headers are compared, the first and the last among them."""

_LARGE: Final = 1 << 16
"""What is between two members is fetched at once if it has no more bytes."""

_log = logging.getLogger(__name__)


class Listed(NamedTuple):
    """A member as an index has it."""

    data: int
    size: int
    name: str


class DisagreementError(Exception):
    """An index does not describe an archive: why."""


class IndexedMembers:
    """The members of an archive as the index beside it lists them, compared with the archive.

    Attributes:
        source: the archive, of which the places that are looked at have been fetched.
    """

    def __init__(self, source: ByteSource, listed: Sequence[Listed]) -> None:
        self._listed, self._end = listed, source.size()
        bounds = [(0, 0), *((each.data, each.data + padded(each.size)) for each in listed), (self._end, self._end)]
        self._gaps = [(behind, data) for (_, behind), (data, _) in itertools.pairwise(bounds)]
        if any(data - behind < BLOCK for behind, data in self._gaps):
            raise DisagreementError("its members do not follow each other, or the archive ends before they do")
        step = max(len(listed) // _COMPARED, 1)
        compared = {0, len(listed) - 1, *range(0, len(listed), step)}
        self._looked_at = {
            number for number, (behind, data) in enumerate(self._gaps) if data - behind != BLOCK or number in compared
        }
        self.source = _Fetched(source, [self._gaps[number] for number in sorted(self._looked_at)])

    def __iter__(self) -> Iterator[Member]:
        """All members. Raises DisagreementError, and FrameError as `next_member`."""
        for number, each in enumerate(self._listed):
            behind, _ = self._gaps[number]
            if number in self._looked_at:
                yield from self._found(behind, each)
            else:
                after = each.data + padded(each.size)
                yield Member(each.name, behind, each.data, each.size, after, True, refusal(each.name))
        position = self._gaps[-1][0]
        while (member := next_member(self.source, position, self._end)) is not None:
            if member.is_file and split_name(member.name):
                raise DisagreementError(f"it does not list {member.name!r}")
            yield member
            position = member.after

    def _found(self, position: int, each: Listed) -> Iterator[Member]:
        """The members from `position` on up to the one that is listed."""
        while True:
            member = next_member(self.source, position, self._end)
            if member is None or member.data > each.data:
                raise DisagreementError(f"{each.name!r} is not at byte offset {each.data}")
            yield member
            if member.is_file and member.data == each.data:
                break
            position = member.after
        if (member.size, member.name) != (each.size, each.name):
            raise DisagreementError(f"{each.name!r} of {each.size} bytes is {member.name!r} of {member.size}")


class _Fetched:
    """A source of which some places were fetched all at once."""

    def __init__(self, source: ByteSource, places: Sequence[tuple[int, int]]) -> None:
        near = [place for place in places if place[1] - place[0] <= _LARGE]
        self.size, self._source, self._begins = source.size, source, [begin for begin, _ in near]
        self._spans = source.spans(self._begins, [end for _, end in near])

    def __getitem__(self, place: slice) -> bytes:
        number = bisect.bisect_right(self._begins, place.start) - 1
        if number >= 0:
            begin, span = self._begins[number], self._spans[number]
            if place.stop - begin <= len(span):
                return span[place.start - begin : place.stop - begin]
        return self._source[place]


def index_beside(entry: FileEntry) -> list[Listed] | None:
    """What the index beside an archive lists; None: there is none that can be used, which is said of one that is."""
    if not entry.path.lower().endswith(".tar"):
        return None
    path = f"{entry.path[: -len('.tar')]}.idx"
    content = _content(path)
    if content is None:
        return None
    try:
        return _parsed(content)
    except (ValueError, DisagreementError) as error:
        say_unused(entry, str(error))
        return None


def say_unused(entry: FileEntry, why: str) -> None:
    """Tell that an archive's headers are read although there is an index, and why."""
    path = redacted(entry.path)
    _log.warning(
        "The index beside %s is not used: %s. The headers in the archive are read instead. "
        "HINT: write it again with wds2idx, or remove it.",
        path,
        why,
    )


def _content(path: str) -> str | None:
    content = read_if_there(path)
    # Some servers answer whatever is asked, and others' files have this ending, too.
    return content.decode("utf-8", "surrogateescape") if content is not None and content.startswith(b"v1.") else None


def _parsed(content: str) -> list[Listed]:
    """The members that an index lists. Raises DisagreementError, or ValueError: a place is not a number."""
    head, *lines = content.rstrip("\n").split("\n")
    version, _, count = head.partition(" ")
    if version != _VERSION:
        raise DisagreementError(f"it is of version {version}, and names of members are in {_VERSION} only")
    if not count.isdigit() or int(count) != len(lines) or not lines:
        raise DisagreementError(f"it has {len(lines)} lines, and says {count}")
    listed = []
    for line in lines:
        words = line.split(" ")
        if len(words) % 4:
            raise DisagreementError(f"a line cannot be taken apart: {line[:80]!r}")
        parts = zip(words[1::4], words[2::4], words[3::4], strict=True)
        listed += [Listed(int(data), int(size), name) for data, size, name in parts]
    if any(each.data % BLOCK or each.data < BLOCK or each.size < 0 for each in listed):
        raise DisagreementError(f"a member's content is not at a multiple of {BLOCK} bytes")
    return listed

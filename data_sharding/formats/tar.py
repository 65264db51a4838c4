"""Tar shards as webdataset writes and reads them: finding their samples."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import CorruptRecordError, ScatteredSampleError
from data_sharding.formats.record_format import FrameError, RecordFormat, RecordIndex, Unpacked, refuse_compressed
from data_sharding.formats.tar_index_file import DisagreementError, IndexedMembers, index_beside, say_unused
from data_sharding.formats.tar_members import Member, SampleParts, Sliced, next_member, parse_sample, split_name
from data_sharding.storage import ByteSource, FileEntry

_CHUNK_BYTES: Final = 1 << 20


class _Bytes(Sliced, Protocol):
    def size(self) -> int: ...


@dataclass(frozen=True)
class TarFormat(RecordFormat):
    """`RecordFormat` for uncompressed tar archives, whose records are samples: see `tar_members`.

    A record's span goes from the first header of its first member to the last byte of its last member's content, and
    its payload is the span: `tar_members(payload)` takes it apart. Links, devices and names that lead out of the
    archive are damage; so is an archive without its end mark, whose last sample may lack members.
    """

    name = "tar"
    patterns = ("*.tar",)
    scans_content = True

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:  # noqa: ARG002
        """Only headers are touched. Raises also ScatteredSampleError (members of one sample do not stand together)."""
        index, scattered = scan_archive(path, source)
        if scattered is not None:
            raise scattered
        return index

    def scan_beside(self, entry: FileEntry) -> RecordIndex | None:
        """From an index of wds2idx; None also where it and the archive differ, or the archive is to be looked at."""
        listed = index_beside(entry)
        if listed is None:
            return None
        try:
            members = IndexedMembers(self.open(entry), listed)
            scan = _Scan(entry.path, members.source, members)
            index = scan.index()
        except DisagreementError as error:
            say_unused(entry, str(error))
            return None
        if not index.damage and scan.scattered is None:
            return index
        say_unused(entry, index.damage[0].fact.rstrip(".") if index.damage else "samples are in several places")
        return None

    def unpack(self, raw: list[bytes], crcs: NDArray[np.uint32] | None, check: bool) -> Unpacked:  # noqa: ARG002
        return Unpacked(raw, np.fromiter(map(_is_sample, raw), np.bool_, len(raw)))


def scan_archive(path: str, source: ByteSource) -> tuple[RecordIndex, ScatteredSampleError | None]:
    """The samples of an archive, and the error that says so if one of them is a part of another one."""
    scan = _Scan(path, source)
    return scan.index(), scan.scattered


def _members(source: _Bytes, end: int) -> Iterator[Member]:
    """What the headers name, up to the end mark. Raises FrameError."""
    position = 0
    while position < end:
        member = next_member(source, position, end)
        if member is None:
            return
        yield member
        position = member.after
    raise FrameError("is missing: there is no end-of-archive mark, the file was cut short", position)


def _is_sample(span: bytes) -> bool:
    try:
        parse_sample(span)
    except FrameError:
        return False
    return True


class _Scan:
    """One pass over the members of an archive, by default those that its headers name."""

    def __init__(self, path: str, source: _Bytes, members: Iterable[Member] | None = None) -> None:
        self._path, self._source, self._end = path, source, source.size()
        self._members = _members(source, self._end) if members is None else members
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._damage: list[CorruptRecordError] = []
        self._key: str | None = None
        self._extensions: set[str] = set()
        self._cut_by_damage: str | None = None  # key of the sample into which a refused member was put
        self._parts = SampleParts()
        self.scattered: ScatteredSampleError | None = None

    def index(self) -> RecordIndex:
        try:
            mark = self._walk()
            self._end_sample()
            self._check_rest_is_zero(mark)
        except FrameError as error:
            self._damage.append(self._lost(error))
            # Members of the last sample may be behind the damage.
            del self._begins[-1:], self._ends[-1:]
        begins = np.array(self._begins, np.int64)
        return RecordIndex(begins, np.array(self._ends, np.int64) - begins, damage=tuple(self._damage))

    def _walk(self) -> int:
        """Take all members; returns the byte at which the end mark begins."""
        position = 0
        for member in self._members:
            self._take(member)
            position = member.after
        return position

    def _take(self, member: Member) -> None:
        if member.refused:
            self._damage.append(self._refused(member, member.refused))
        split = split_name(member.name) if member.is_file or member.refused else None
        if split is None:
            return
        key, extension = split
        if key != self._key:
            self._end_sample()
            self._cut_by_damage = self._key if member.refused else self._cut_by_damage
            self._key = key
            self._extensions.clear()
            self._begins.append(member.begin)
            self._ends.append(member.begin)
        if extension in self._extensions:
            self._damage.append(self._refused(member, "is there twice in its sample"))
        self._extensions.add(extension)
        self._ends[-1] = member.data + member.size

    def _end_sample(self) -> None:
        if self._key in (None, self._cut_by_damage):
            return
        begin = self._begins[-1]
        earlier = self._parts.rest_of(self._key, self._extensions, begin)
        if earlier is not None and self.scattered is None:
            self.scattered = ScatteredSampleError(
                f"Members of the sample {self._key!r} of {self._path} are at byte offset {earlier} and, after those of "
                f"other samples, at byte offset {begin}.",
                "The members of a sample have to stand together, or each part would count as a sample.",
                f"have `hvdtrain shard convert {shlex.quote(self._path)} FOLDER --to tar` join them, or write the "
                "archive again in the order of names (tar --sort=name).",
            )

    def _check_rest_is_zero(self, mark: int) -> None:
        for begin in range(mark, self._end, _CHUNK_BYTES):
            chunk = self._source[begin : min(begin + _CHUNK_BYTES, self._end)]
            if chunk.count(0) != len(chunk):
                error = CorruptRecordError(
                    f"{self._path} continues after its end-of-archive mark at byte offset {mark}.",
                    "Members after it would never be read.",
                    "join archives with `tar --concatenate`, or name them one by one.",
                    path=self._path,
                    offset=mark,
                )
                self._damage.append(error)
                return

    def _refused(self, member: Member, why: str) -> CorruptRecordError:
        return CorruptRecordError(
            f"Member {member.name!r} of {self._path}, at byte offset {member.begin}, {why}.",
            "Samples are made of regular files with names inside the archive, one of each extension.",
            "write the archive again without it.",
            path=self._path,
            offset=member.begin,
        )

    def _lost(self, error: FrameError) -> CorruptRecordError:
        """Why nothing can be read from a member on; raised instead where the file is not a tar archive."""
        if error.offset == 0:
            refuse_compressed(self._path, self._source[0:4])
        if error.offset == 0 and self._source[257:262] != b"ustar":
            raise CorruptRecordError(
                f"{self._path} is not a tar archive.",
                f"The content at byte offset 0 {error.what}.",
                "check the path, or name the format that the file has.",
                path=self._path,
            )
        fact = f"The member at byte offset {error.offset} of {self._path} {error.what}."
        conflict = "The rest of the archive cannot be read, nor can the sample before it be known to be whole."
        return CorruptRecordError(fact, conflict, path=self._path, offset=error.offset)

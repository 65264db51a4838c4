"""Members of a tar archive, in the dialects v7, ustar, GNU and PAX, and the samples that they form.

The same code walks whole archives and single records cut out of one, so it works on anything that can be sliced.
Source of the layout: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; GNU tar manual, "Basic
Tar Format".

Samples follow webdataset's convention. A member's key is its path up to the first dot of its base name, its extension
what follows that dot, in lower case. Consecutive members of one key form a sample; the same key later on begins
another, unless it is the rest of one, which the index refuses. Members that belong to no sample are passed over:
folders, names without a dot, hidden files, and what lies under a top-level name such as `__meta__`. Source: webdataset,
src/webdataset/tariterators.py, base_plus_ext() and group_by_keys(); there a hidden file inside a folder forms a sample
whose key is the folder, here it does not.
"""

import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from data_sharding.errors import ExampleError
from data_sharding.formats.record_format import FrameError

BLOCK: Final = 512
ZERO_BLOCK: Final = bytes(BLOCK)
_REGULAR: Final = (b"0", b"\0", b"7")
_FOLDER: Final = b"5"
_WITHOUT_DATA: Final = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a FIFO",
}
_GNU_NAME, _GNU_LINK, _PAX, _PAX_OLD, _PAX_GLOBAL = b"L", b"K", b"x", b"X", b"g"
_EXTENSIONS: Final = (_GNU_NAME, _GNU_LINK, _PAX, _PAX_OLD, _PAX_GLOBAL)
_MAX_EXTENSION: Final = 1 << 20
"""A header that extends the next one holds names; one that claims to be larger than this is damaged."""
_CHECKSUM: Final = slice(148, 156)
_ADLER_MODULUS: Final = 65521


class Sliced(Protocol):
    """Bytes, or what hands them out as these do."""

    def __getitem__(self, span: slice, /) -> bytes: ...


class Member(NamedTuple):
    """One member of an archive."""

    name: str  # its path, as stored; bytes that are not UTF-8 as surrogates
    begin: int  # byte at which its first header begins
    data: int  # byte at which its content begins
    size: int  # bytes of content
    after: int  # byte at which the next member begins
    is_file: bool
    refused: str | None  # why it must not be used: "is a symbolic link", "has an absolute name"; None for a good one


def next_member(source: Sliced, begin: int, end: int) -> Member | None:
    """The member whose headers begin at byte `begin` of a source of `end` bytes; None at the end-of-archive mark.

    Raises FrameError (a header is damaged, or the source ends before the member does).
    """
    position = begin
    extended: dict[str, str] = {}
    while True:
        header = source[position : position + BLOCK]
        if header == ZERO_BLOCK and not extended:
            return None
        size = _checked_size(header, begin)
        kind, data = header[156:157], position + BLOCK
        if kind not in _EXTENSIONS:
            return _member(header, kind, begin, data, size, extended, end)
        if size > _MAX_EXTENSION or data + size > end:
            raise FrameError("has an extended header that is not whole", begin)
        extended.update(_extension(kind, source[data : data + size], begin))
        position = data + padded(size)


def padded(size: int) -> int:
    """Bytes that content of `size` bytes takes in an archive."""
    return -(-size // BLOCK) * BLOCK


def _checked_size(header: bytes, begin: int) -> int:
    if len(header) < BLOCK:
        raise FrameError("is cut short inside its header", begin)
    stored = _number(header[_CHECKSUM], begin)
    # The sum of bytes is the low half of Adler-32, minus 1, modulo 65521: one call instead of 512 additions.
    adler = zlib.adler32(b" " * 8, zlib.adler32(header[156:], zlib.adler32(header[:148]))) & 0xFFFF
    if (stored + 1) % _ADLER_MODULUS != adler and stored != _signed_sum(header):
        raise FrameError("has a header that does not match its checksum", begin)
    return _number(header[124:136], begin)


def _signed_sum(header: bytes) -> int:
    """The checksum of some old implementations, which summed signed characters."""
    unsigned = 8 * ord(" ") + sum(header[:148]) + sum(header[156:])
    return unsigned - 256 * sum(byte > 127 for byte in header[:148] + header[156:])


def _number(field: bytes, begin: int) -> int:
    """Octal digits, or base 256 for numbers that octal digits cannot hold."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip()
    if digits and not (digits.isdigit() and max(digits) < ord("8")):
        raise FrameError("has a header with an invalid number", begin)
    return int(digits, 8) if digits else 0


def _member(header: bytes, kind: bytes, begin: int, data: int, size: int, extended: dict[str, str], end: int) -> Member:
    name = extended.get("path") or _name(header)
    is_folder = kind == _FOLDER or (kind == b"\0" and name.endswith("/"))
    if kind in _WITHOUT_DATA or is_folder:
        return Member(name, begin, data, 0, data, False, None if is_folder else f"is {_WITHOUT_DATA[kind]}")
    if kind not in _REGULAR or any(keyword.startswith("GNU.sparse") for keyword in extended):
        raise FrameError(f"has a type that is not supported (sparse, or type flag {kind!r})", begin)
    if "size" in extended:
        value = extended["size"]
        if not (value.isascii() and value.isdigit() and len(value) < 20):
            raise FrameError(f"has an extended header with size {value!r}", begin)
        size = int(value)
    if data + size > end:
        raise FrameError(f"is cut short: its content needs {size} bytes, {max(end - data, 0)} are left", begin)
    return Member(name, begin, data, size, data + padded(size), True, refusal(name))


def refusal(name: str) -> str | None:
    """Why a member of that name must not be used; None: it may."""
    if name.startswith("/"):
        return "has an absolute name"
    return "has a name that leaves its folder" if ".." in name.split("/") else None


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    if header[257:263] == b"ustar\0" and header[345]:
        name = header[345:500].partition(b"\0")[0] + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def _extension(kind: bytes, content: bytes, begin: int) -> dict[str, str]:
    """What a header says of the member that follows."""
    if kind == _GNU_LINK:
        return {"linkpath": ""}
    if kind == _GNU_NAME:
        return {"path": content.partition(b"\0")[0].decode("utf-8", "surrogateescape")}
    records = _pax_records(content, begin)
    if kind == _PAX_GLOBAL:
        if records.keys() & {"path", "size"}:
            raise FrameError("has a global header that names every member the same", begin)
        return {}
    return records


def _pax_records(content: bytes, begin: int) -> dict[str, str]:
    """`length keyword=value\\n` after another; the length counts itself."""
    records = {}
    while content.rstrip(b"\0"):
        digits = content[:20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        keyword, equals, value = content[len(digits) + 1 : length].partition(b"=")
        if not equals or length > len(content) or content[length - 1 : length] != b"\n":
            raise FrameError("has an extended header that is damaged", begin)
        records[keyword.decode("utf-8", "surrogateescape")] = value[:-1].decode("utf-8", "surrogateescape")
        content = content[length:]
    return records


class TarSample(NamedTuple):
    """One sample: the key, and the content of each member by extension, in the order of the archive."""

    key: str
    members: dict[str, bytes]


def split_name(name: str) -> tuple[str, str] | None:
    """Key and extension of a member; None where it belongs to no sample."""
    top = name.partition("/")[0]
    if len(top) >= 4 and top.startswith("__") and top.endswith("__"):
        return None
    folder, slash, base = name.rpartition("/")
    stem, dot, extension = base.partition(".")
    return (folder + slash + stem, extension.lower()) if stem and dot else None


def tar_members(payload: bytes) -> dict[str, bytes]:
    """The content of the members of a record in tar format by extension, such as "jpg"; errors as `tar_sample`."""
    return tar_sample(payload).members


def tar_sample(payload: bytes) -> TarSample:
    """Like `tar_members`, with the sample's key. Raises ExampleError (the bytes are not the members of one sample)."""
    try:
        return parse_sample(payload)
    except FrameError as error:
        raise ExampleError(
            f"A payload of {len(payload)} bytes is not a sample of a tar shard.",
            f"The member at its byte {error.offset} {error.what}.",
            "decode these records with the function that fits how they were written.",
        ) from error


def parse_sample(span: bytes) -> TarSample:
    """The sample that fills `span` from the first header to the last byte of content.

    Raises FrameError (it does not, or a member must not be used).
    """
    key, members = None, {}
    position, end, last = 0, len(span), 0
    while position < end:
        member = next_member(span, position, end)
        if member is None:
            raise FrameError("is the end of an archive", position)
        if member.refused:
            raise FrameError(member.refused, position)
        split = split_name(member.name) if member.is_file else None
        if split is not None:
            if split[1] in members or split[0] != (key or split[0]):
                raise FrameError(f"is {member.name!r}, which does not belong to the sample {key!r}", position)
            key, last = split[0], member.data + member.size
            members[split[1]] = span[member.data : last]
        position = member.after
    if key is None or last != end:
        raise FrameError("ends where the sample does not", last)
    return TarSample(key, members)


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

"""Samples of a tar shard, by webdataset's convention.

A member's key is its path up to the first dot of its base name, its extension what follows that dot, in lower case.
Consecutive members of one key form a sample; the same key later on begins another. Members that belong to no sample
are passed over wherever they stand: folders, names without a dot, hidden files, and whatever lies under a top-level
name such as `__meta__`. Source: webdataset, src/webdataset/tariterators.py, base_plus_ext() and group_by_keys(); there
a hidden file inside a folder forms a sample whose key is the folder, here it does not.
"""

from __future__ import annotations

from typing import NamedTuple

from data_sharding.errors import ExampleError
from data_sharding.formats.tar_headers import TarError, next_member


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
    """From the payload of a record in tar format to the content of its members by extension, such as "jpg".

    Raises:
        ExampleError: the bytes are not the members of one sample.
    """
    return tar_sample(payload).members


def tar_sample(payload: bytes) -> TarSample:
    """Like `tar_members`, with the sample's key.

    Raises:
        ExampleError: the bytes are not the members of one sample.
    """
    try:
        return parse_sample(payload)
    except TarError as error:
        raise ExampleError(
            f"A payload of {len(payload)} bytes is not a sample of a tar shard.",
            f"The member at its byte {error.offset} {error.what}.",
            "decode these records with the function that fits how they were written.",
        ) from error


def parse_sample(span: bytes) -> TarSample:
    """The sample that fills `span` from the first header to the last byte of content.

    Raises:
        TarError: it does not, or a member must not be used.
    """
    key, members = None, {}
    position, end, last = 0, len(span), 0
    while position < end:
        member = next_member(span, position, end)
        if member is None:
            raise TarError("is the end of an archive", position)
        if member.refused:
            raise TarError(member.refused, position)
        split = split_name(member.name) if member.is_file else None
        if split is not None:
            if split[1] in members or split[0] != (key or split[0]):
                raise TarError(f"is {member.name!r}, which does not belong to the sample {key!r}", position)
            key, last = split[0], member.data + member.size
            members[split[1]] = span[member.data : last]
        position = member.after
    if key is None or last != end:
        raise TarError("ends where the sample does not", last)
    return TarSample(key, members)

"""Frames arrive whole in whatever pieces, and what is none ends the connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.launch.ssh.frames import PREAMBLE, BrokenFrameError, Frame, FrameReader

FRAMES = st.lists(
    st.builds(
        Frame,
        st.sampled_from(["output", "ended"]),
        st.dictionaries(st.text(max_size=5).filter(lambda name: name != "kind"), st.integers() | st.text(), max_size=3),
        st.binary(max_size=300),
    ),
    max_size=5,
)

GREETINGS = st.binary(max_size=50).filter(lambda text: b"HVDTRAIN" not in text)


@given(frames=FRAMES, cuts=st.lists(st.integers(1, 40), min_size=1), greeting=GREETINGS)
def test_frames_arrive_in_whatever_pieces(frames: list[Frame], cuts: list[int], greeting: bytes) -> None:
    data = greeting + PREAMBLE + b"".join(frame.encode() for frame in frames)
    reader = FrameReader(skips_greeting=True)
    found = []
    at = turn = 0
    while at < len(data):
        step = cuts[turn % len(cuts)]
        found += list(reader.feed(data[at : at + step]))
        at, turn = at + step, turn + 1
    assert found == frames


@pytest.mark.parametrize(
    "data", [b"\xff" * 8, b"Welcome to node7", b"\0\0\0\2\0\0\0\0[]", b"\0\0\0\2\0\0\0\0{}", b"\0\0\0\1\0\0\0\0x"]
)
def test_what_is_no_frame(data: bytes) -> None:
    with pytest.raises(BrokenFrameError):
        list(FrameReader().feed(data))


def test_a_greeting_has_an_end() -> None:
    reader = FrameReader(skips_greeting=True)
    assert list(reader.feed(b"Last login: yesterday\n" * 5000)) == []
    with pytest.raises(BrokenFrameError, match="no agent answers"):
        list(reader.feed(b"Last login: yesterday\n" * 20_000))

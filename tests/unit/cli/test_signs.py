"""Signs that a stream cannot encode become ASCII's, and control characters are shown, not obeyed."""

from __future__ import annotations

import io

from hvdtrain.cli.signs import PLAIN, encode_in_ascii
from hvdtrain.run.sinks.terminal import printable


def test_signs_without_an_encoding() -> None:
    encode_in_ascii()
    written = io.BytesIO()
    with io.TextIOWrapper(written, "ascii", PLAIN) as stream:
        stream.write("−0.0793 × 0.88 … 3 → 2 ━┄ 日")
        stream.flush()
        assert written.getvalue() == b"-0.0793 x 0.88 ... 3 -> 2 =. ?"


def test_control_characters() -> None:
    assert printable("a\x1b[31m\tb\x7f\x9b\r−é") == "a\\x1b[31m\tb\\x7f\\x9b\\x0d−é"

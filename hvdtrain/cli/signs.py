"""Signs that a terminal cannot show."""

import codecs
from collections.abc import Mapping
from typing import Final

PLAIN: Final = "hvdtrain.plain"  # The name of the way to encode signs that a stream's encoding lacks: by those of ASCII

_IN_ASCII: Final[Mapping[str, str]] = {
    **{"−": "-", "–": "-", "—": "-", "×": "x", "…": "...", "→": "->", "±": "+-", "µ": "u", "≥": ">=", "≤": "<="},
    **{"━": "=", "╸": "=", "┄": ".", "│": "|", "\u00a0": " "},
}


def encode_in_ascii() -> None:
    """Make `PLAIN` known to Python's streams."""
    codecs.register_error(PLAIN, _in_ascii)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_IN_ASCII.get(sign, "?") for sign in error.object[error.start : error.end]), error.end

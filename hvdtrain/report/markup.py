"""HTML from parts. Everything that is no `Markup` is escaped: names, errors and hosts come from whoever ran the job."""

import html
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

_VOID: Final = frozenset(("meta", "br"))


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Part = str | Markup | Iterable["Part"] | None
"""Text, HTML, any number of parts one after the other, or nothing."""


def join(*parts: Part) -> Markup:
    """Parts one after the other, escaped where they are no `Markup`."""
    return Markup("".join(_pieces(parts)))


def tag(name: str, /, *parts: Part, **attributes: str | bool | None) -> Markup:
    """An element.

    Args: `attributes`: those with None or False are left out, those with True have no value; "class_" and "aria_label"
    are the attributes "class" and "aria-label".
    """
    opening = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{opening}>")
    return Markup(f"<{name}{opening}>{join(*parts)}</{name}>")


def _attribute(key: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(_printable(value))}"'


def _pieces(parts: Iterable[Part]) -> Iterable[str]:
    for part in parts:
        if isinstance(part, Markup):
            yield part
        elif isinstance(part, str):
            yield html.escape(_printable(part))
        elif part is not None:
            yield from _pieces(part)


def _printable(text: str) -> str:
    """Without characters that HTML does not allow, or that a browser would take for a change of direction."""
    if text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if is_hidden(c) else c for c in text)


def is_hidden(character: str) -> bool:
    """Whether a character is a control character or the like, and no space."""
    return unicodedata.category(character).startswith("C") and character not in "\n\t"


def table(
    caption: str, columns: Sequence[Part], rows: Iterable[Sequence[Part]], numbers: bool = True, visible: bool = False
) -> Markup:
    """A table that can be scrolled sideways by mouse, finger and keys where it is wider than the page.

    Args:
        numbers: all columns but the first are aligned to the right.
        visible: whether the caption is shown; screen readers read it in any case.
    """
    head = tag("tr", (tag("th", column, scope="col") for column in columns))
    body = [tag("tr", tag("th", row[0], scope="row"), (tag("td", cell) for cell in row[1:])) for row in rows]
    shown = tag("caption", caption, class_=None if visible else "unseen")
    whole = tag("table", shown, tag("thead", head), tag("tbody", body), class_="numbers" if numbers else None)
    return tag("div", whole, class_="scroll", role="group", tabindex="0", aria_label=caption)


def details(summary: Part, *parts: Part, class_: str | None = None) -> Markup:
    """What is shown when asked for."""
    return tag("details", tag("summary", summary), *parts, class_=class_)


def bullets(items: Iterable[Part], class_: str | None = None) -> Markup:
    """A list."""
    return tag("ul", (tag("li", item) for item in items), class_=class_)

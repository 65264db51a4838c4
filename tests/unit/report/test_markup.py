"""HTML from parts: whatever comes from a run is text, and never becomes an element or an attribute."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.read_page import Page

from hvdtrain.report.markup import Markup, details, is_hidden, join, table, tag

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


def visible(text: str) -> str:
    return "".join("\N{REPLACEMENT CHARACTER}" if is_hidden(character) else character for character in text)


@given(text=TEXT, label=TEXT)
def test_text_stays_text(text: str, label: str) -> None:
    page = Page(tag("p", text, "<b>", Markup("<i>it</i>"), aria_label=label))
    assert [element.name for element in page.elements] == ["p", "i"]
    paragraph = page.elements[0]
    assert paragraph.text == f"{visible(text)}<b>it"
    assert paragraph.attributes["aria-label"] == visible(label)


def test_what_would_hide_text_or_turn_it_around_is_shown() -> None:
    assert join("a\u202eb\x00c\x1b[31m\xa0\u3000ü\n") == "a\ufffdb\ufffdc\ufffd[31m\xa0\u3000ü\n"


def test_elements() -> None:
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert tag("p", None, ["a", ["b", Markup("&amp;")]], hidden=True, id=None) == "<p hidden>ab&amp;</p>"
    assert details("more", "text") == "<details><summary>more</summary>text</details>"


def test_a_table_has_heads_for_screen_readers_and_can_be_scrolled_by_keys() -> None:
    page = Page(table("Ranks <1>", ("rank", "seconds"), [("0", "1.5"), ("1", "2.5")]))
    assert [e.attributes["scope"] for e in page.all("th")] == ["col", "col", "row", "row"]
    assert page.text("caption") == "Ranks <1>"
    assert len(page.all("div", tabindex="0", role="group")) == 1

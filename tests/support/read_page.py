"""A page as a browser would take it: its elements, its text, and what is wrong with it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "br"}


@dataclass
class Element:
    """One element, with all text inside it."""

    name: str
    attributes: dict[str, str | None]
    text: str = ""


@dataclass
class Page(HTMLParser):
    """Parses on creation. Raises AssertionError where elements are not closed in their order."""

    source: str
    elements: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[Element] = []
        self.feed(self.source)
        self.close()
        assert self._open == [], f"not closed: {[element.name for element in self._open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute is there twice: {tag} {names}"
        self.elements.append(Element(tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(self.elements[-1])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        opened = self._open.pop()
        assert opened.name == tag, f"</{tag}> closes <{opened.name}>"

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, name: str, **attributes: str) -> list[Element]:
        """Elements of a name, and with these attributes."""
        return [e for e in self.elements if e.name == name and attributes.items() <= e.attributes.items()]

    def text(self, name: str = "body") -> str:
        """What all elements of a name contain."""
        return "\n".join(element.text for element in self.all(name))

    def problems(self) -> list[str]:
        """What would keep it from being one file that shows in any colour scheme, and reads aloud."""
        return [*self._outside(), *self._ids(), *self._variables(), *self._unnamed()]

    def _outside(self) -> list[str]:
        styles = self.text("style")
        found = [
            f"<{e.name}>" for e in self.elements if e.name in ("script", "link", "iframe", "img", "object", "base")
        ]
        found += [f"{e.name} {n}" for e in self.elements for n in e.attributes if n.startswith("on") or n == "src"]
        found += [f"href {h}" for e in self.elements if (h := e.attributes.get("href")) and not h.startswith("#")]
        addresses = re.findall(r"url\((?!#)[^)]*\)|@import|https?://\S+", styles + " ".join(map(str, self._values())))
        return [f"not self-contained: {what}" for what in found + addresses]

    def _values(self) -> list[str]:
        return [value for e in self.elements for name, value in e.attributes.items() if name == "style" and value]

    def _ids(self) -> list[str]:
        ids = [e.attributes["id"] for e in self.elements if "id" in e.attributes]
        twice = {i for i in ids if ids.count(i) > 1}
        named = re.findall(r'(?:href="#|url\(#)([^")]+)', self.source)
        return [f"id {i} is there twice" for i in twice] + [f"id {i} is missing" for i in set(named) - set(ids)]

    def _variables(self) -> list[str]:
        styles = self.text("style")
        light, dark = styles.split("@media (prefers-color-scheme: dark)")
        used = set(re.findall(r"var\((--[\w-]+)\)", self.source))
        schemes = {"light": light, "dark": dark}
        return [f"{v} has no value in the {n}" for v in used for n, s in schemes.items() if f"{v}: #" not in s]

    def _unnamed(self) -> list[str]:
        pictures = [e for e in self.all("svg") if e.attributes.get("aria-hidden") != "true"]
        found = ["a picture has no words" for e in pictures if not e.attributes.get("aria-label")]
        return found + ["a picture has no role" for e in pictures if e.attributes.get("role") != "img"]

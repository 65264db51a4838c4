"""Reports in Chromium: on a phone and on a wide screen, in light and dark, and as axe-core judges them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Browser, Tab
from needs import AXE
from support.report_runs import usual_lines, write_run

from hvdtrain.report.page import read_runs, write_page

LONG = "a_very_long_name_without_any_place_to_break_it_" * 4


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name → file: a usual run, one with trouble and long names, a damaged one, and all of them compared."""
    folder = tmp_path_factory.mktemp("runs")
    lines = list(usual_lines(slow=3.0, ranks=20))
    lines.append({"event": "failed", "step": 200, "error": f"ValueError: {LONG}", "time": 1300.0})
    for line in lines:
        if "split" in line:
            line[LONG] = 1e-12 * line["step"]
    runs = {
        "usual": write_run(folder / "usual"),
        "trouble": write_run(folder / f"trouble_{LONG}", lines, {"task": LONG, LONG: LONG}, {"task": LONG}),
        "damaged": write_run(folder / "damaged", [{"event": "started", "step": 0}]),
    }
    stall = runs["trouble"] / "stalls" / "20260101-120000" / "explanation.txt"
    stall.parent.mkdir(parents=True)
    stall.write_text(f"Rank 1 on {LONG} has been in training step 3 for 40 s.\n")
    (runs["damaged"] / "result.json").unlink()
    files = {}
    for name, folders in {**{name: [run] for name, run in runs.items()}, "compared": list(runs.values())}.items():
        files[name] = folder / f"{name}.html"
        write_page(files[name], read_runs(folders))
    return files


REPORTS = ["usual", "trouble", "damaged", "compared"]


@pytest.fixture(params=REPORTS)
def file(reports: dict[str, Path], request: pytest.FixtureRequest) -> Path:
    return reports[request.param]


@pytest.fixture(
    params=[(360, False), (360, True), (1280, False), (1280, True)], ids=lambda p: f"{p[0]}-{p[1] and 'dark'}"
)
def tab(browser: Browser, file: Path, request: pytest.FixtureRequest) -> Iterator[Tab]:
    """A report in a window of some width, light or dark, with all that can be opened open."""
    width, dark = request.param
    shown = Tab(browser, file, width, dark=dark)
    shown.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    yield shown
    shown.close()


_WIDE = """
[...document.querySelectorAll('body *')]
  .filter(e => !e.closest('.scroll, pre, .unseen, svg *') && e.getBoundingClientRect().right > innerWidth + 0.5)
  .map(e => e.outerHTML.slice(0, 200))
"""
_CUT = """
[...document.querySelectorAll('svg.chart text')].filter(t => {
  const own = t.getBoundingClientRect(), all = t.closest('svg').getBoundingClientRect();
  return own.left < all.left - 1 || own.right > all.right + 1 || own.top < all.top - 1 || own.bottom > all.bottom + 1
}).map(t => t.textContent)
"""
_SMALLEST = """
Math.min(99, ...[...document.querySelectorAll('svg.chart text')].map(t => {
  const picture = t.closest('svg')
  return parseFloat(getComputedStyle(t).fontSize) * picture.clientWidth / picture.viewBox.baseVal.width
}))
"""


def test_it_fits_and_nobody_complains(tab: Tab) -> None:
    assert tab.complaints() == []
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), tab.evaluate(_WIDE)
    assert tab.evaluate(_WIDE) == []
    assert tab.evaluate(_CUT) == [], "texts of pictures are cut off"
    assert tab.evaluate(_SMALLEST) >= 11


def test_axe_finds_nothing(tab: Tab) -> None:
    tab.evaluate(AXE.read_text() + "; 0")
    found = tab.evaluate("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
    assert [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found] == []


@pytest.mark.parametrize("name", REPORTS)
def test_light_and_dark_have_colours_of_their_own(name: str, browser: Browser, reports: dict[str, Path]) -> None:
    colours = []
    for dark in (False, True):
        shown = Tab(browser, reports[name], 800, dark=dark)
        expression = "getComputedStyle(document.body).backgroundColor + getComputedStyle(document.body).color"
        colours.append(shown.evaluate(expression))
        shown.close()
    assert colours[0] != colours[1]

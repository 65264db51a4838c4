"""Draw docs/images/report-*.png, pages of real runs as Chromium shows them: `make screenshots` calls this.

python docs/report_pictures.py [FOLDER with runs "first" and "other", which are made where they are missing]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from chromium import Browser, Tab  # noqa: E402
from needs import browser as path_of_browser  # noqa: E402
from needs import provide  # noqa: E402

_BIN = Path(sys.executable).parent
_TRAIN = [str(_BIN / "horovodrun"), "-np", "2", sys.executable, "-m", "hvdtrain", "--best-metric", "accuracy"]
_TRAIN += ["--max-grad-norm", "1", "--epochs", "12", "--checkpoint-interval", "20"]


def make_runs(folder: Path) -> None:
    """A run that was stopped, and continued later; and one in the other framework."""
    first, other = folder / "first", folder / "other"
    if not first.exists():
        subprocess.run([*_TRAIN, "--output-dir", str(first), "--max-steps", "200"], check=True, cwd=ROOT)
        subprocess.run([*_TRAIN, "--output-dir", str(first)], check=True, cwd=ROOT)
    if not other.exists():
        words = ["--output-dir", str(other), "--framework", "tensorflow", "--lr", "0.005"]
        subprocess.run([*_TRAIN, *words], check=True, cwd=ROOT)


def draw(folder: Path, program: str) -> None:
    """The pictures of the runs in `folder`."""
    from hvdtrain.report.page import read_runs, write_page

    one, both = folder / "one.html", folder / "both.html"
    write_page(one, read_runs([folder / "first"]))
    write_page(both, read_runs([folder / "first", folder / "other"]))
    IMAGES.mkdir(exist_ok=True)
    with Browser(program) as browser:
        for name, file, width, dark, height in (
            ("light", one, 1280, False, 1500),
            ("dark", one, 1280, True, 1500),
            ("phone", one, 360, False, 1600),
            ("compared", both, 1280, False, 1950),
        ):
            tab = Tab(browser, file, width, dark=dark)
            tab.picture(IMAGES / f"report-{name}.png", height)
            tab.close()


def main() -> int:
    """Returns 1 where there is no browser."""
    if reason := provide():
        print(f"No pictures were drawn. {reason}", file=sys.stderr)
        return 1
    program = path_of_browser()
    assert program is not None  # else `provide` had said so
    with tempfile.TemporaryDirectory() as made:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(made)
        folder.mkdir(exist_ok=True)
        make_runs(folder)
        draw(folder, program)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Builds the documentation site, and fails where anything in it is not right: `make docs`.

python docs/builder [--out FOLDER]

The pages of docs/, what they link to, and the reference that is made from the code become one folder of Markdown, from
which Zensical makes HTML. What is an error: a link or an anchor that leads nowhere, a page that is not in the
navigation, a page of more words than a reader takes, a block of Python, YAML or JSON that does not parse, and a command
of hvdtrain with an option that does not exist.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from code_blocks import faults_of_blocks  # noqa: E402
from navigation import write_settings  # noqa: E402
from page_rules import faults_of_pages  # noqa: E402
from reference import generated_pages, with_generated_parts  # noqa: E402
from staging import Staging  # noqa: E402

_SECONDS = 300


def main() -> int:
    """Returns 0 if the site is there and nothing is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="for the site (default: build/site)")
    out = parser.parse_args().out.absolute()
    source = out.with_name(f"{out.name}-source")
    shutil.rmtree(source, ignore_errors=True)
    staging = Staging(ROOT, source / "pages")
    staging.add_generated(generated_pages(ROOT))
    staging.add_pages(with_generated_parts(ROOT))
    shutil.copy(ROOT / "docs" / "site.css", source / "pages")
    faults = [*staging.faults, *faults_of_blocks(ROOT), *faults_of_pages(ROOT)]
    faults += write_settings(ROOT, source)
    faults += _build(source)
    shutil.rmtree(out, ignore_errors=True)
    if (source / "site").is_dir():
        (source / "site").rename(out)
    for fault in faults:
        print(f"docs: {fault}", file=sys.stderr)
    print(f"docs: {len(staging.written)} pages in {out}" if not faults else f"docs: {len(faults)} faults")
    return 1 if faults else 0


def _build(source: Path) -> list[str]:
    """What Zensical has found wrong. With warnings it writes the site as well."""
    command = [Path(sys.executable).parent / "zensical", "build", "--clean", "--strict"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=source, capture_output=True, text=True, check=False, timeout=_SECONDS, env=environment
    )
    said = re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)
    warnings = re.findall(r"^(?:Warning|Error): (.*)\n.*?╭─\[ (.*?) \]", said, re.MULTILINE)
    found = [f"{place}: {what}" for what, place in warnings]
    if done.returncode and not found:
        found = [f"zensical has failed: {said.strip()[-2000:]}"]
    return found


if __name__ == "__main__":
    sys.exit(main())

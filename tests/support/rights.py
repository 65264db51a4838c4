"""Another user than root, who may read everything: for what happens where rights lack."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_NOBODY = 65534


@contextmanager
def public_folder() -> Iterator[Path]:
    """A folder that everybody reaches, where there is one; else the test is skipped. pytest's are its user's alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with no_root():
            is_reached = os.access(folder, os.R_OK | os.X_OK, effective_ids=True)
        if not is_reached:
            pytest.skip(f"only this user reaches {folder}")
        yield folder


@contextmanager
def no_root() -> Iterator[None]:
    """The block's rights are those of a user who owns nothing, where this process has root's. What the block imports
    must be there before. The test is skipped where root may not become that user."""
    user = os.geteuid()
    try:
        os.seteuid(user or _NOBODY)
    except OSError as error:
        pytest.skip(f"root may not become another user here: {error}")
    try:
        yield
    finally:
        os.seteuid(user)

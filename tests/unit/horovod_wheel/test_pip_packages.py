"""Packages are installed by uv, with what pip's configuration says; where uv cannot be told that, by pip."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hvdtrain.horovod_wheel.pip_packages import UV, pip_install, uv_settings

FILES = {
    "METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
    "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "RECORD": "tiny-1.0.dist-info/METADATA,,\ntiny-1.0.dist-info/WHEEL,,\ntiny-1.0.dist-info/RECORD,,\n",
}


def test_what_pip_is_told_uv_is_told() -> None:
    listed = """:env:.cert='/etc/ca.crt'
:env:.disable-pip-version-check='1'
global.constraint='/etc/pins.txt'
global.extra-index-url='file:///a file:///b'
global.find-links='\\n/one\\n/two'
global.index-url='https://mirror/simple'
"""
    words = "--constraint /etc/pins.txt --index file:///a --index file:///b --find-links /one --find-links /two"
    assert uv_settings(listed) == (
        [*words.split(), "--default-index", "https://mirror/simple"],
        {"SSL_CERT_FILE": "/etc/ca.crt"},
    )
    assert uv_settings("") == ([], {})
    assert uv_settings(listed + "install.no-index='true'\n") is None


@pytest.mark.skipif(not Path(sys.executable).with_name(UV).exists(), reason="this environment has no uv")
def test_pip_installs_where_uv_cannot_be_told_what_pip_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, venv = tmp_path / "tiny-1.0-py3-none-any.whl", tmp_path / "venv"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in FILES.items():
            archive.writestr(f"tiny-1.0.dist-info/{name}", text)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=120)
    os.symlink(Path(sys.executable).with_name(UV), venv / "bin" / UV)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    (constraints := tmp_path / "constraints.txt").write_text("tiny==1.0\n")
    for setting, installer in (("PIP_RETRIES", "uv"), ("PIP_NO_INDEX", "pip")):
        monkeypatch.setenv(setting, "1")
        pip_install(["--force-reinstall", str(wheel)], constraints, str(venv / "bin" / "python"))
        (file,) = venv.glob("lib/*/site-packages/tiny-1.0.dist-info/INSTALLER")
        assert file.read_text().strip() == installer

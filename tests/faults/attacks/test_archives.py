"""Archives cannot write outside of their folder, nor expand to any size: the source of a SageMaker job.

The archive comes from S3, here a server of this machine, and `hvdtrain.launch.sagemaker.train_entry` is what the
image's `train` runs.
"""

from __future__ import annotations

import gzip
import http.server
import io
import json
import os
import resource
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 240
ZEROS_MB = 64
BOMB_BYTES = 10 * 2**30
UNFILTERED: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "data_filter") else {}
"""Python has filters since 3.11.4."""
BUCKET = "/bucket/sourcedir.tar.gz"

pytest.importorskip("boto3")


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def named(name: str, content: bytes = b"escaped") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def upwards(_outside: Path) -> bytes:
    return packed(named("own.py"), named("../outside/mark"))


def absolute(outside: Path) -> bytes:
    return packed(named("own.py"), named(f"{outside}/mark"))


def through_a_link(outside: Path) -> bytes:
    link = tarfile.TarInfo("door")
    link.type, link.linkname = tarfile.SYMTYPE, str(outside)
    return packed(named("own.py"), (link, b""), named("door/mark"))


def through_a_chain_of_links(_outside: Path) -> bytes:
    """Of links that each stay inside, as far as their names tell."""
    first, second = tarfile.TarInfo("deep/up"), tarfile.TarInfo("door")
    first.type, first.linkname = tarfile.SYMTYPE, ".."
    second.type, second.linkname = tarfile.SYMTYPE, "deep/up/../outside"
    return packed(named("own.py"), named("deep/file"), (first, b""), (second, b""), named("door/mark"))


ESCAPES = [upwards, absolute, through_a_link, through_a_chain_of_links]


class OneObject(http.server.BaseHTTPRequestHandler):
    """As much of S3 as it takes to fetch one object."""

    def __init__(self, content: bytes, *arguments: object) -> None:
        self.content = content
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.send_header("ETag", '"1"')
        self.end_headers()

    def do_GET(self) -> None:
        whole, begin = self.content, self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        first, last = int(begin[0]), int(begin[2] or len(whole) - 1)
        part = whole[first : last + 1]
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(whole)}")
        self.send_header("ETag", '"1"')
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_: object) -> None:
        """Nothing."""


Enter = Callable[[bytes], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def enter(tmp_path: Path) -> Iterator[Enter]:
    """Run the container's entry with an archive as its source; the container's folders are in `ml`."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def run(content: bytes) -> subprocess.CompletedProcess[str]:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(OneObject, content))
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}
        place = {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{server.server_port}", "AWS_CONFIG_FILE": "/dev/null"}
        env = {**os.environ, **keys, **place, "SAGEMAKER_BASE_DIR": str(tmp_path / "ml")}
        return subprocess.run(
            [sys.executable, "-m", "hvdtrain.launch.sagemaker.train_entry"],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            preexec_fn=limit_memory,
        )

    settings = tmp_path / "ml" / "input" / "config"
    settings.mkdir(parents=True)
    own = {"sagemaker_program": '"own.py"', "sagemaker_submit_directory": f'"s3:/{BUCKET}"'}
    (settings / "hyperparameters.json").write_text(json.dumps(own))
    hosts = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"}
    (settings / "resourceconfig.json").write_text(json.dumps(hosts))
    yield run
    for server in servers:
        server.shutdown()
        server.server_close()


def limit_memory() -> None:
    """Far less than the bomb."""
    resource.setrlimit(resource.RLIMIT_DATA, (BOMB_BYTES // 4, BOMB_BYTES // 4))


def require_refused(done: subprocess.CompletedProcess[str], words: str) -> None:
    text = done.stdout + done.stderr
    assert done.returncode == 2, text
    assert "cannot be unpacked" in text, text
    assert words in text, text


def test_a_sound_source_runs(enter: Enter, tmp_path: Path) -> None:
    done = enter(packed(named("./own.py", b"open('ran', 'w')\n"), named("pkg/part.py", b"")))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "ml" / "code" / "ran").exists()
    assert (tmp_path / "ml" / "code" / "pkg" / "part.py").exists()


@pytest.mark.parametrize("made", ESCAPES, ids=lambda made: made.__name__)
def test_what_leads_out_of_the_folder_is_refused(made: Callable[[Path], bytes], enter: Enter, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "unguarded").mkdir()
    with tarfile.open(fileobj=io.BytesIO(made(outside))) as archive:
        archive.extractall(tmp_path / "unguarded", **UNFILTERED)
    assert (outside / "mark").exists(), "the attack does not work, so that its test shows nothing"
    (outside / "mark").unlink()
    outside.rename(tmp_path / "ml" / "outside")  # beside the container's folder of sources
    content = made(tmp_path / "ml" / "outside")
    done = enter(content)
    require_refused(done, "leads out of its folder" if "link" not in made.__name__ else "a link or a device")
    assert not (tmp_path / "ml" / "outside" / "mark").exists()
    assert not (tmp_path / "ml" / "code" / "own.py").exists(), "nothing is written before all was looked at"


def zeros(count: int) -> bytes:
    """As gzip members, which follow each other."""
    block = gzip.compress(bytes(ZEROS_MB * 2**20))
    return block * (count // (ZEROS_MB * 2**20))


def a_large_file() -> bytes:
    header = tarfile.TarInfo("own.py")
    header.size = BOMB_BYTES
    return gzip.compress(header.tobuf(tarfile.GNU_FORMAT)) + zeros(BOMB_BYTES)


def a_large_header() -> bytes:
    """A name of 10 GB: tarfile reads it whole before anybody can look at it."""
    header = tarfile.TarInfo("././@LongLink")
    header.size, header.type = BOMB_BYTES, tarfile.GNUTYPE_LONGNAME
    return gzip.compress(header.tobuf(tarfile.GNU_FORMAT)) + zeros(BOMB_BYTES)


UNGUARDED = """
import resource, sys, tarfile
resource.setrlimit(resource.RLIMIT_FSIZE, (2**27, 2**27))
resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
tarfile.open(sys.argv[1]).extractall(sys.argv[2])
"""


@pytest.mark.parametrize(
    ("made", "without_a_guard"),
    [(a_large_file, "File too large"), (a_large_header, "MemoryError")],
    ids=["file", "name"],
)
def test_ten_gigabytes_of_zeros_are_refused(
    made: Callable[[], bytes], without_a_guard: str, enter: Enter, tmp_path: Path
) -> None:
    """Within limits, so that what has no guard ends by them."""
    content = made()
    assert len(content) < 2**24, "a small archive"
    (tmp_path / "bomb").write_bytes(content)
    (tmp_path / "unguarded").mkdir()
    words = [sys.executable, "-c", UNGUARDED, str(tmp_path / "bomb"), str(tmp_path / "unguarded")]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert without_a_guard in ended.stderr
    require_refused(enter(content), "it expands to more than 512 MiB")
    assert not (tmp_path / "ml" / "code" / "own.py").exists()

"""A server of files that stops answering one rank: the watchdog names the file and the place that rank reads."""

from __future__ import annotations

import http.server
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.processes import python_path
from support.ranks import run_ranks

from hvdtrain.task.data_access import DataAccess
from hvdtrain.tasks.digits import open_split

WORKERS = Path(__file__).parent / "workers"


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, whole or one range of bytes; where `hangs` holds for a path, it never answers."""

    protocol_version = "HTTP/1.1"
    hangs: Callable[[str], bool]
    is_over: threading.Event

    def do_GET(self) -> None:
        if self.hangs(self.path):
            self.is_over.wait()
            self.close_connection = True
            return
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if span is None:
            super().do_GET()
            return
        begin, end = int(span[1]), int(span[2]) + 1
        path = Path(self.translate_path(self.path))
        body = path.read_bytes()[begin:end]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {begin}-{begin + len(body) - 1}/{path.stat().st_size}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", self.date_time_string(int(path.stat().st_mtime)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@contextmanager
def served(folder: Path, hangs: Callable[[str], bool]) -> Iterator[str]:
    is_over = threading.Event()
    own = type("Own", (Ranges,), {"hangs": staticmethod(hangs), "is_over": is_over})

    def handler(*args: Any) -> Ranges:
        return own(*args, directory=str(folder))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            is_over.set()
            server.shutdown()
            thread.join(60)


def test_a_file_that_is_not_read_any_further_is_named_with_its_place(tmp_path: Path) -> None:
    """Each rank has a folder of its own there. All is read once before training, for the catalog."""
    catalog = open_split(DataAccess(None, tmp_path / "cache"), "train")
    for rank in range(2):
        shutil.copytree(Path(catalog.files[0].path).parent, tmp_path / "web" / f"rank_{rank}")

    def hangs(path: str) -> bool:
        return path.startswith("/rank_1/train-") and (tmp_path / "out" / "config.yaml").exists()

    with served(tmp_path / "web", hangs) as url:
        argv = ["python", "-m", "hvdtrain", "--task", "train_torch_tasks:OwnFolder", "--data.dir", url]
        argv += ["--output-dir", "out", "--watchdog", "3", "--data.timeout", "12"]
        env = python_path(WORKERS)
        finished = run_ranks(argv, 2, "horovodrun-gloo", 240, env, tmp_path)
    assert finished.returncode != 0, finished.tail()
    (stall,) = (tmp_path / "out" / "stalls").iterdir()
    told = (stall / "explanation.txt").read_text()
    file = rf"{url}/rank_1/train-0000\d-of-0000\d\.tfrecord"
    assert re.search(
        rf"Rank 1 on \S+ has been in data loading for step \d for \d+ s, reading record \d+, {file} @ byte \d+",
        told,
    ), (told, finished.tail())
    assert re.search(r"Rank 0 has waited \d+ s in hvdtrain\.gradients\.0 of step \d, for the others\.", told), told
    assert "Batch 0 was not ready after 12 seconds." in finished.stderr, finished.tail()

"""The copy of a run behind a URL: what a new machine finds there, after sends that broke off at any operation, too."""

from __future__ import annotations

import filecmp
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import fsspec
import numpy as np
import pytest
from support.s3_server import Store, serving, use

from hvdtrain.checkpoints.format import Checkpoint, Position, write_position
from hvdtrain.checkpoints.mirror import Mirror
from hvdtrain.checkpoints.remote_folder import LATEST, RemoteFolder, RemoteRun, checkpoint_behind
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.cli.main import main
from hvdtrain.errors import UsageError


@pytest.fixture(scope="module")
def server() -> Iterator[Store]:
    with serving() as store:
        yield store


@pytest.fixture(params=["s3", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a run's folder, which is not there yet."""
    if request.param == "file":
        (tmp_path / "store").mkdir()
        return f"file://{tmp_path}/store/run"
    return f"{request.getfixturevalue('bucket')}/run"


@pytest.fixture
def bucket(server: Store, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    use(monkeypatch, tmp_path, server.endpoint)
    name = f"bucket-{abs(hash(request.node.nodeid)):x}"
    fsspec.filesystem("s3").mkdir(name)
    return f"s3://{name}"


class Machine:
    """A run folder on a disk of its own, which is mirrored to a URL."""

    def __init__(self, folder: Path, url: str, remote: RemoteFolder | None = None) -> None:
        self.run = folder
        self.store = CheckpointStore(folder / "checkpoints", keep=2)
        self.mirror = Mirror(remote or RemoteFolder(url), folder, self.store)
        folder.mkdir(exist_ok=True)
        self.mirror.bind(adopts=True)
        self.store.copy = self.mirror.send

    def train_to(self, step: int) -> None:
        """What a training leaves when it saves."""
        (self.run / "audit").mkdir(exist_ok=True)
        (self.run / "audit" / f"segment_{step}.npy").write_bytes(bytes(step))
        (self.run / "metrics.jsonl").write_text(f'{{"step": {step}}}\n')
        (self.run / "metrics.csv").write_text(f"step\n{step}\n")
        (self.run / "wandb.json").write_text('{"id": "1"}')
        self.store.save(checkpoint(step))

    def fetched(self) -> int | None:
        """The step from which training goes on here."""
        self.mirror.fetch()
        newest = self.store.newest()
        return None if newest is None else newest.position.step


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint({"model/w": np.full(3, step), "optimizer/m": np.zeros(2)}, Position(step, step), {})


def names(url: str) -> list[str]:
    return RemoteRun(RemoteFolder(url)).names()


def test_a_new_machine_goes_on_from_there(url: str, tmp_path: Path) -> None:
    first = Machine(tmp_path / "first", url)
    for step in (10, 20, 30):
        first.train_to(step)
    assert names(url) == ["step_00000020", "step_00000030"]  # as many as are kept
    second = Machine(tmp_path / "second", url)
    assert second.fetched() == 30
    for name in (
        "metrics.jsonl",
        "metrics.csv",
        "wandb.json",
        "audit/segment_10.npy",
        "checkpoints/step_00000030/model.safetensors",
    ):
        assert (second.run / name).read_bytes() == (first.run / name).read_bytes()
    second.train_to(40)
    assert names(url) == ["step_00000030", "step_00000040"]


def test_what_is_here_and_newer_stays(url: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "one", url)
    machine.train_to(10)
    machine.store.copy = None
    machine.train_to(20)
    assert machine.fetched() == 20
    assert (machine.run / "metrics.jsonl").read_text() == '{"step": 20}\n'


def test_a_damaged_one_is_passed_over(url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(tmp_path / "one", url)
    for step in (10, 20):
        machine.train_to(step)
    RemoteFolder(url).replace("checkpoints/step_00000020/model.safetensors", b"torn")
    assert Machine(tmp_path / "other", url).fetched() == 10
    assert "skipping a damaged checkpoint" in caplog.text
    assert checkpoint_behind(url, "--resume").position.step == 10
    with pytest.raises(UsageError, match="holds no sound checkpoint"):
        checkpoint_behind(f"{url}/checkpoints/latest", "--resume")
    assert checkpoint_behind(f"{url}/checkpoints/step_00000010", "--resume").position.step == 10
    with pytest.raises(UsageError, match="names no checkpoint"):  # there is no best one, and no other is taken for it
        checkpoint_behind(f"{url}/checkpoints/best", "--resume")
    RemoteFolder(url).replace("checkpoints/best", b"../step_00000010\n")
    with pytest.raises(UsageError, match="names no checkpoint"):
        checkpoint_behind(f"{url}/checkpoints/best", "--resume")


def test_another_run_is_refused(url: str, tmp_path: Path) -> None:
    Machine(tmp_path / "one", url).train_to(10)
    other = Machine(tmp_path / "other", f"{url}-2")
    other.train_to(10)
    with pytest.raises(UsageError, match="holds the checkpoints of another run"):
        Machine(tmp_path / "other", url)
    assert names(url) == ["step_00000010"]


def test_a_pointer_that_another_job_has_moved_is_left_alone(
    server: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On S3, where the store itself compares and replaces."""
    use(monkeypatch, tmp_path, server.endpoint)
    fsspec.filesystem("s3").mkdir("two-jobs")
    machine = Machine(tmp_path / "one", "s3://two-jobs/run")
    machine.train_to(10)
    RemoteFolder("s3://two-jobs/run").replace(LATEST, b"step_00000099\n")
    with pytest.raises(OSError, match="another job has written to it meanwhile"):
        machine.train_to(20)
    assert RemoteRun(RemoteFolder("s3://two-jobs/run")).pointed("latest") == "step_00000099"


class Breaking(RemoteFolder):
    """Fails at one of the operations that change something, and at all later ones: the machine is gone."""

    def __init__(self, url: str, at: int) -> None:
        super().__init__(url)
        self.left = at

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError("gone")

    def replace(self, *args: object, **named: object) -> object:  # type: ignore[override]
        self._count()
        return super().replace(*args, **named)  # type: ignore[arg-type]

    def upload(self, *args: object) -> None:  # type: ignore[override]
        self._count()
        super().upload(*args)  # type: ignore[arg-type]

    def remove(self, name: str) -> None:
        self._count()
        super().remove(name)


def test_a_send_that_breaks_off_at_any_operation_leaves_the_old_or_the_new_one(tmp_path: Path) -> None:
    found, at = [], 0
    while not found or found[-1][1]:
        folder = tmp_path / str(at)
        folder.mkdir()
        url = f"file://{folder}/store"
        machine = Machine(folder / "run", url)
        for step in (10, 20):
            machine.train_to(step)
        breaking = Machine(folder / "run", url, Breaking(url, at))
        try:
            breaking.train_to(30)
            broke = False
        except OSError:
            broke = True
        found.append((Machine(folder / "new", url).fetched(), broke))
        Machine(folder / "run", url).mirror.send(folder / "run" / "checkpoints" / "step_00000030")
        assert names(url) == ["step_00000020", "step_00000030"]
        assert Machine(folder / "again", url).fetched() == 30
        at += 1
    steps = [step for step, _ in found]
    turn = steps.index(30)
    assert len(steps) > 8, "too few operations: were they counted?"
    assert steps == [20] * turn + [30] * (len(steps) - turn)
    assert 0 < turn < len(steps) - 1


def test_commands_read_it(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(tmp_path / "one", url)
    for step in (10, 20):
        machine.train_to(step)
    assert main(["checkpoint", "ls", url]) == 0
    lines = [line.split() for line in capsys.readouterr().out.replace("│", " ").splitlines()]
    assert [[line[0], line[1], line[-1]] for line in lines if line and line[0].startswith("step_")] == [
        ["step_00000010", "10", "?"],
        ["step_00000020", "20", "latest"],
    ]
    assert main(["checkpoint", "verify", url]) == 0
    RemoteFolder(url).replace("checkpoints/step_00000010/optimizer.safetensors", b"torn")
    assert main(["checkpoint", "verify", url]) == 1
    assert "step_00000010: optimizer.safetensors is damaged" in capsys.readouterr().out
    assert main(["checkpoint", "verify", f"{url}/checkpoints/latest"]) == 0
    assert main(["checkpoint", "ls", f"{url}-none"]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err


def test_a_large_file_goes_in_parts_and_comes_back_whole(bucket: str, tmp_path: Path) -> None:
    size = 2 * 50 * 2**20 + 4096  # above twice s3fs's parts, below which it sends the file at once
    with (tmp_path / "large").open("wb") as file:
        file.truncate(size - 4)
        file.seek(size - 4)
        file.write(b"last")
    folder = RemoteFolder(f"{bucket}/large")
    folder.upload(tmp_path / "large", "checkpoint/model")
    etag = folder.version("checkpoint/model").etag
    assert etag is not None
    assert etag.strip('"').endswith("-3")  # S3's mark of a file of three parts
    assert folder.sizes("checkpoint") == {"model": size}
    folder.download("checkpoint/model", tmp_path / "again", size)
    assert filecmp.cmp(tmp_path / "large", tmp_path / "again", shallow=False)


def test_where_all_are_damaged_nothing_is_begun(tmp_path: Path) -> None:
    """The run would begin from nothing, and remove them."""
    url = f"file://{tmp_path}/store"
    Machine(tmp_path / "here", url).train_to(10)
    (tmp_path / "store" / "checkpoints" / "step_00000010" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UsageError, match="Every checkpoint at .* is damaged"):
        Machine(tmp_path / "new", url).fetched()
    assert names(url) == ["step_00000010"]
    Machine(tmp_path / "here", url).mirror.fetch()  # it has a sound one itself


def test_another_history_is_sent_without_taking_the_arrays_away(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    machine = Machine(tmp_path / "here", url)
    machine.train_to(10)
    (path,) = machine.store.paths()
    write_position(path, Position(10, 11))
    for at in range(20):
        breaking = Machine(tmp_path / "here", url, Breaking(url, at))
        with suppress(OSError):
            breaking.mirror.send(path)
        assert Machine(tmp_path / f"new_{at}", url).fetched() == 10


def test_a_checkpoint_is_here_only_with_what_belongs_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the ledger of a run that was killed while it fetched would stay away, and later replace the whole one."""
    url = f"file://{tmp_path}/store"
    Machine(tmp_path / "here", url).train_to(10)
    new = Machine(tmp_path / "new", url)
    monkeypatch.setattr(RemoteFolder, "download", failing_for("audit/", RemoteFolder.download))
    with pytest.raises(UsageError, match="cannot be used"):
        new.mirror.fetch()
    assert new.store.paths() == []
    monkeypatch.undo()
    assert new.fetched() == 10
    assert (tmp_path / "new" / "audit" / "segment_10.npy").exists()


def failing_for(start: str, download: Callable[..., None]) -> Callable[..., None]:
    def failing(self: RemoteFolder, name: str, *rest: object) -> None:
        if name.startswith(start):
            raise OSError("gone")
        download(self, name, *rest)

    return failing


def test_a_job_that_lost_its_disk_goes_on_where_nothing_was_saved(tmp_path: Path) -> None:
    """The URL has its number alone; another job without that is refused."""
    url = f"file://{tmp_path}/store"
    Machine(tmp_path / "lost", url)
    for goes_on in (False, True):
        folder = tmp_path / f"new_{goes_on}"
        folder.mkdir()
        mirror = Mirror(RemoteFolder(url), folder, CheckpointStore(folder / "checkpoints", keep=2))
        if goes_on:
            mirror.bind(adopts=False, goes_on=True)
        else:
            with pytest.raises(UsageError, match="another run"):
                mirror.bind(adopts=False)


def test_a_checkpoint_that_a_run_begins_with_is_sent(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    Machine(tmp_path / "here", url).store.adopt(checkpoint(5), None)
    assert Machine(tmp_path / "new", url).fetched() == 5

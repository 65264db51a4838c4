"""A small file takes little memory: compressed weights, catalogs and audits, and views of any size."""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from memory import grown_mb

import data_sharding as ds
from hvdtrain.cli.main import main

GIANT_MB = 128
SMALL_BYTES = 2**20


def compressed(source: Path, target: Path) -> None:
    """The same zip file, with members that take no room."""
    with zipfile.ZipFile(source) as plain, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for member in plain.infolist():
            packed.writestr(member.filename, plain.read(member))
    assert target.stat().st_size < SMALL_BYTES


def require_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    codes: list[int] = []
    assert grown_mb("self", lambda: codes.append(main(words))) < GIANT_MB / 2
    assert codes == [2]
    assert said in capsys.readouterr().err


def test_compressed_weights_of_torch_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    torch.save({"w": torch.zeros(GIANT_MB * 2**18)}, tmp_path / "plain.pt")
    compressed(tmp_path / "plain.pt", tmp_path / "small.pt")
    assert grown_mb("self", lambda: torch.load(tmp_path / "small.pt", weights_only=True)) > GIANT_MB / 2
    require_refused(["export", str(tmp_path / "small.pt")], "is a compressed zip file", capsys)


def test_a_view_of_any_size_on_some_bytes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    torch.save({"w": torch.zeros(1).expand(GIANT_MB * 2**18)}, tmp_path / "small.pt")
    view = torch.load(tmp_path / "small.pt", weights_only=True)["w"]
    assert grown_mb("self", lambda: view.contiguous().numpy()) > GIANT_MB / 2
    require_refused(["export", str(tmp_path / "small.pt")], "something else than dense tensors: w", capsys)


def test_compressed_weights_of_keras_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "model.weights.h5", "w") as file:
        file["layers/dense/vars/0"] = np.zeros((2**18, GIANT_MB), np.float32)
    with zipfile.ZipFile(tmp_path / "plain.keras", "w") as archive:
        archive.write(tmp_path / "model.weights.h5", "model.weights.h5")
    compressed(tmp_path / "plain.keras", tmp_path / "small.keras")

    def unguarded() -> None:
        with zipfile.ZipFile(tmp_path / "small.keras") as archive, archive.open("model.weights.h5") as member:
            h5py.File(io.BytesIO(member.read()))["layers/dense/vars/0"][()]

    assert grown_mb("self", unguarded) > GIANT_MB / 2
    require_refused(["export", str(tmp_path / "small.keras")], "model.weights.h5 is compressed", capsys)


def test_a_compressed_catalog_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", offsets=np.zeros(GIANT_MB * 2**17))
    compressed(tmp_path / "plain.npz", tmp_path / "small.npz")
    assert grown_mb("self", lambda: np.load(tmp_path / "small.npz")["offsets"]) > GIANT_MB / 2

    def read() -> None:
        with pytest.raises(ds.CatalogError, match="a member is compressed"):
            ds.Catalog.load(tmp_path / "small.npz")

    assert grown_mb("self", read) < GIANT_MB / 2


def audit_of_many_records() -> bytes:
    """A sound one, but of more records than the run has."""
    records = GIANT_MB * 2**23
    message = struct.pack("<8s4QB", b"dscover\x01", records, 0, 0, 0, True) + zlib.compress(bytes(records // 8))
    return message + hashlib.blake2b(message, digest_size=16).digest()


def test_an_audit_of_more_records_than_there_are_is_refused() -> None:
    audit = audit_of_many_records()
    assert len(audit) < SMALL_BYTES
    assert grown_mb("self", lambda: ds.CoverageAudit.from_bytes(audit)) > GIANT_MB / 2, "who asks for no number"

    def read() -> None:
        with pytest.raises(ds.CatalogError, match="records, not of 1797"):
            ds.CoverageAudit.from_bytes(audit, 1797)

    assert grown_mb("self", read) < GIANT_MB / 2

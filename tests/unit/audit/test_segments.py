"""A segment holds what all ranks have used, by whichever way it came to rank 0."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ranks import run_on_ranks

from data_sharding import Catalog, CoverageAudit, LoadedBatch
from hvdtrain.audit.ledger import LEDGER, CoverageLedger
from hvdtrain.comm.communicator import Communicator

uses = st.lists(st.lists(st.integers(0, 21), max_size=12), min_size=1, max_size=4)


@settings(deadline=None, max_examples=40)
@given(of_ranks=uses, records=st.sampled_from([22, 100_000]), damaged=st.sets(st.integers(0, 3)))
def test_it_is_the_union_of_all_ranks_byte_for_byte(of_ranks: list[list[int]], records: int, damaged: set[int]) -> None:
    """Also where several ranks, or one of them several times, have used a record, which a sum of bits does not tell."""
    catalog = Catalog.of(np.arange(records))
    broken = [rank for rank in range(len(of_ranks)) if rank in damaged]

    def write(comm: Communicator) -> None:
        rank = comm.topology.rank
        ledger = CoverageLedger(comm, folder, catalog, bytes, steps_per_epoch=1)
        ledger.start(0)
        ids, weights = np.array(of_ranks[rank], np.int64), np.ones(len(of_ranks[rank]), np.float32)
        masked = np.array([5 + rank] if rank in broken else [], np.int64)
        ledger.add(LoadedBatch(0, ids, weights, {}, 12.0, damaged=masked))
        save = ledger.end_segment(1)
        if comm.topology.is_root:
            save()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for ended in run_on_ranks(len(of_ranks), write):
            assert ended is None
        line = json.loads((folder / LEDGER).read_text().splitlines()[-1])
        content = (folder / line["file"]).read_bytes()
    parts = [CoverageAudit(records) for _ in of_ranks]
    for part, ids in zip(parts, of_ranks, strict=True):
        part.add(np.array(ids, np.int64), np.ones(len(ids), np.float32))
    assert content == CoverageAudit.union(parts).to_bytes()
    assert line["damaged"] == [5 + rank for rank in broken]

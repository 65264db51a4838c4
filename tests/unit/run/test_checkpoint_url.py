"""`--checkpoint-url` and `--resume URL`: a run goes on where its disk is lost, with the weights of one that kept it."""

from __future__ import annotations

import shutil
from pathlib import Path

from support.commands import Ended, Forker
from support.runs import result_of


def test_a_run_goes_on_on_a_new_disk_and_from_a_url(tmp_path: Path, digits_cache: Path, forker: Forker) -> None:
    url = f"file://{tmp_path}/store/run"

    def train(folder: str, steps: int, *options: str) -> Ended:
        words = ["--global-batch-size", "32", "--progress", "none", "--output-dir", folder, "--max-steps", str(steps)]
        return forker.run([*words, *options], tmp_path, {"HVDTRAIN_CACHE_DIR": str(digits_cache)})

    def weights(folder: str) -> str:
        found: str = result_of(tmp_path / folder)["weights"]["sha256"]
        return found

    assert train("whole", 6).code == 0
    assert train("lost", 3, "--checkpoint-url", url).code == 0
    shutil.rmtree(tmp_path / "lost")
    assert train("new", 6, "--checkpoint-url", url).code == 0
    assert weights("new") == weights("whole")
    metrics = (tmp_path / "new" / "metrics.jsonl").read_text()
    assert metrics.count('"event": "started"') == metrics.count('"event": "resumed"') == 1  # the lost one's came too
    assert train("other", 6, "--resume", f"{url}/checkpoints/step_00000006").code == 0
    assert weights("other") == weights("whole")
    train("refused", 6, "--resume", f"{url}-none").require_refusal("holds no sound checkpoint", "--resume")

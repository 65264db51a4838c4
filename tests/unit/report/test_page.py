"""The page of a run: what it says, that it is one file for any screen, and that bad input costs only its own part."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.read_page import Page
from support.report_runs import usual_lines, write_run

from hvdtrain.report.page import FAILED, MARKER, page, read_runs


def page_of(*folders: Path) -> Page:
    found = Page(page(read_runs(folders)))
    assert FAILED not in found.text()
    return found


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(write_run(tmp_path_factory.mktemp("runs") / "first"))


def test_it_is_one_file_for_light_and_dark_and_for_screen_readers(usual: Page) -> None:
    assert usual.source.startswith(MARKER)
    assert usual.problems() == []
    assert len(usual.all("svg", role="img")) == 5
    assert [e.text for e in usual.all("figcaption")] == [
        "Loss",
        "Accuracy",
        "Learning rate",
        "Time of each rank",
        "Throughput, samples per second",
        "Time of all starts together",
    ]
    headings = [int(e.name[1]) for e in usual.elements if re.fullmatch(r"h\d", e.name)]
    assert headings[0] == 1
    assert all(after - before <= 1 for before, after in zip(headings, headings[1:], strict=False))


def test_it_says_what_the_run_came_to(usual: Page) -> None:
    text = usual.text()
    assert usual.text("h1") == "digits in torch"
    assert "Finished after 200 updates on 2 workers in" in text
    facts = dict(zip((e.text for e in usual.all("dt")), (e.text for e in usual.all("dd")), strict=True))
    assert facts["Restarts"] == "1"
    assert facts["Updates trained again"] == "10"
    assert facts["Samples per second"] == "3,210"
    assert (facts["Best accuracy"], facts["Best at step"]) == ("0.97", "150")
    assert "The run was interrupted once; until training went on" in text
    assert "rank 1 is lost" in text
    assert "There is no proof of which records were used. The run holds no audit" in text
    assert "The weights are equal on all workers; their SHA-256 begins with 0123456789abcdef." in text
    assert "Not everything could be read" not in text


def test_each_picture_has_its_facts_as_a_sentence_and_its_numbers_as_a_table(usual: Page) -> None:
    (loss,) = [e for e in usual.all("svg", role="img") if str(e.attributes["aria-label"]).startswith("Loss by step.")]
    lines = [line for line in usual_lines() if line.get("split") == "train"]
    values = {line["step"]: line["loss"] for line in lines}  # later ones replace what was trained again
    label = str(loss.attributes["aria-label"])
    lowest, highest = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    assert f"lowest {values[lowest]:.4f}".rstrip("0") in label
    assert f"at {lowest}, highest" in label
    assert f"at {highest}." in label
    captions = [e.text for e in usual.all("caption")]
    for caption in (
        "Loss: training",
        "Loss: validation",
        "Learning rate: learning rate",
        "Seconds of each rank by part",
    ):
        assert caption in captions


def test_sets_of_validation_share_the_chart_of_their_measure(tmp_path: Path) -> None:
    lines = list(usual_lines())
    for line in (line for line in lines if line.get("split") == "validation"):
        line |= {f"{name}/{key}": line[key] for name in ("old", "new") for key in ("loss", "accuracy")}
        line["sets"] = {"old": 9, "new": 9}
        del line["loss"], line["accuracy"]
    page = page_of(write_run(tmp_path / "run", lines))
    charts = [e.text for e in page.all("figcaption")]
    assert charts[:3] == ["Loss", "Accuracy", "Learning rate"]
    tables = [caption.text for caption in page.all("caption")]
    assert [table for table in tables if table.startswith("Loss")] == [
        "Loss: training",
        "Loss: validation old",
        "Loss: validation new",
    ]


def test_colours_of_pictures_are_those_of_the_page(usual: Page) -> None:
    for element in usual.all("svg", role="img"):
        begin = usual.source.index(str(element.attributes["aria-label"])[:20].replace("&", "&amp;"))
        picture = usual.source[begin : usual.source.index("</svg>", begin)]
        assert re.findall(r"#[0-9a-f]{6}\b", picture) == []
        assert "var(--series-1)" in picture
        assert "font-family" not in picture


def test_that_nobody_was_slow_is_said_where_the_run_has_looked(tmp_path: Path) -> None:
    said = "No rank and no link has kept the others waiting"
    lines = list(usual_lines())
    assert said in page_of(write_run(tmp_path, lines, result={"stragglers": []})).text()
    assert said not in page_of(write_run(tmp_path, lines, result={})).text()  # of an older version


STRAGGLER: dict[str, Any] = {
    **{"rank": 1, "host": "node7", "share_of_time_others_waited": 0.4, "slower_by": 0.75, "cause": "slow disk"},
    **{"facts": {"disk_wait": 0.6, "cpu": 0.0}, "since_step": 20, "until_step": 190},
}


@pytest.mark.parametrize("place", ["metrics.jsonl", "result.json"])
def test_what_the_run_has_found_slow_is_told_with_its_cause_and_only_once(place: str, tmp_path: Path) -> None:
    lines = list(usual_lines(slow=2.0))
    told = {"event": "straggler", "step": 190, **STRAGGLER, "time": 1200.0}
    link = {**STRAGGLER, "rank": None, "host": "", "slower_by": 0.0, "cause": "slow link", "facts": {}}
    if place == "metrics.jsonl":
        run = write_run(tmp_path, [*lines[:-1], told, {**told, **link}, lines[-1]])
    else:
        run = write_run(tmp_path, lines, result={"stragglers": [STRAGGLER, link, "of another version"]})
    findings = [e.text for e in page_of(run).all("li") if "slow" in e.text]
    # What was told when it was found does not know for how long it went on.
    updates = "From update 20 on" if place == "metrics.jsonl" else "Updates 20 to 190"
    assert findings == [
        f"{updates}: Rank 1 on node7 is slow by 75%, and the others wait 40% of their time for it; "
        "the cause is: slow disk (share of time waiting for disks: 60%).",
        f"{updates}: All ranks wait 40% of their time for the network: slow link.",
    ]


def test_the_parts_of_a_step_make_up_its_time(tmp_path: Path) -> None:
    seconds = {"data": 1.0, "compute": 8.0, "allreduce": 2.0, "checkpoint": 0.0, "forward": 3.0, "backward": 4.0}
    lines = [
        {"split": "train", "step": step, "seconds": [{**seconds, "allreduce_hidden": 1.5, "new part": 0.5}] * 2}
        for step in (1, 2)
    ]
    lines.append({"split": "validation", "step": 2, "loss": 1.0, "seconds": 3.0, "rank_seconds": [3.0, 2.0]})
    lines.append({"event": "ended", "step": 2, "finished": True})
    steps = {"step_seconds": {"0": {"forward": {"count": 2, "p50": 3.0, "p90": 3.0, "p99": 3.0, "max": 3.5}}}}
    found = page_of(write_run(tmp_path, lines, result=steps))
    rows = [row.text for row in found.all("tr")]
    assert "waiting for data2.00 (8.0 %)2.00 (8.3 %)" in rows
    assert "other compute2.00 (8.0 %)2.00 (8.3 %)" in rows
    assert "validation3.00 (12 %)2.00 (8.3 %)" in rows
    assert "all25.0024.00" in rows
    assert "allreduce beside compute3.003.00" in rows
    assert "new part1.001.00" in rows
    assert "rank 0: forward3.0 s3.0 s3.0 s3.5 s" in rows


def test_memory_of_the_largest_worker(tmp_path: Path) -> None:
    lines = [{"split": "train", "step": s, "memory": {"max": 2e9 + s, "ranks": [1e9, 2e9 + s]}} for s in range(3)]
    found = page_of(write_run(tmp_path, lines))
    assert [e.text for e in found.all("figcaption")] == ["Memory of the largest worker, bytes"]


EVIL = "<script>alert('1')</script>\"'&<!-- --><b>"


def test_whatever_a_run_is_called_and_says_stays_text(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"event": "started", "step": 0, "time": 1.0},
        *({"split": "train", "step": s, EVIL: 1.0, "time": s, "seconds": [{EVIL: 1.0}] * 2} for s in range(1, 20)),
        {"event": "failed", "step": 5, "error": EVIL, "time": 2.0},
    ]
    config = {"task": EVIL, EVIL: EVIL, "data": {EVIL: EVIL}}
    result = {
        "task": EVIL,
        "framework": EVIL,
        "status": EVIL,
        "metrics": {EVIL: 1.0},
        "best": {"metric": EVIL, "step": 1},
    }
    versions = {"versions": {EVIL: EVIL}, "weights": {"sha256": EVIL}}
    folder = write_run(tmp_path / EVIL.replace("/", "|"), lines, config, {**result, **versions})
    (folder / "env.json").write_text(json.dumps({"platform": EVIL, "topology": {EVIL: [EVIL]}, "argv": [EVIL]}))
    stall = folder / "stalls" / EVIL.replace("/", "|") / "explanation.txt"
    stall.parent.mkdir(parents=True)
    stall.write_text(EVIL)
    other = write_run(tmp_path / "other")
    for found in (page_of(folder), page_of(folder, other)):
        assert found.problems() == []
        assert "b" not in {element.name for element in found.elements}
        assert found.text().count(EVIL) > 5


@pytest.mark.parametrize("name", ["config.yaml", "env.json", "result.json", "metrics.jsonl"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "noise", "list", "wrong types"])
def test_a_damaged_file_costs_its_own_part_only(name: str, damage: str, tmp_path: Path) -> None:
    lines = [{"split": "train", "step": step, "loss": 1.0} for step in range(9)]  # a single picture
    path = write_run(tmp_path / "run", lines) / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        wrong = {key: [{"a": [None]}, "x"] for key in (*json.loads((tmp_path / "run/result.json").read_text()), "data")}
        kinds = {"empty": b"", "half": content[: len(content) // 2], "noise": b"\x00\xff{", "list": b"[1, 2]"}
        path.write_bytes({**kinds, "wrong types": json.dumps(wrong).encode()}[damage])
    found = page_of(tmp_path / "run")
    assert found.problems() == []
    if damage != "wrong types" and (name, damage) != ("config.yaml", "half"):  # half of it is YAML, too
        assert "Not everything could be read" in found.text("h2")
    if damage != "half":
        assert len(found.all("svg", role="img")) == (name != "metrics.jsonl")


def test_what_nobody_foresaw_costs_its_own_section_only(tmp_path: Path) -> None:
    (run,) = read_runs([write_run(tmp_path)])
    broken = replace(run, facts=replace(run.facts, config={"data": {1: object()}}))  # no file can hold that
    found = Page(page([broken]))
    assert found.problems() == []
    assert found.text().count(FAILED) == 1
    assert len(found.all("svg", role="img")) == 5


def test_what_has_stopped_a_run_is_told(tmp_path: Path) -> None:
    ended = {"event": "ended", "step": 150, "finished": False, "stopped_by": "SIGTERM (all ranks)", "time": 1250.0}
    lines = [line for line in usual_lines() if line.get("event") not in ("resumed", "ended")]
    text = page_of(write_run(tmp_path, [*lines, ended], result={"status": "stopped"})).text()
    assert "SIGTERM (all ranks) has ended it; the same command continues it." in text
    assert "The run was stopped once, and lost nothing by it." in text
    assert "never interrupted" not in text


def test_a_folder_that_has_only_begun(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank_0.log").touch()
    found = page_of(tmp_path)
    assert found.problems() == []
    assert "metrics.jsonl is missing: there are no curves and no times." in found.text()
    assert "There are no values to draw" in found.text()


def test_several_runs_are_drawn_over_each_other_and_compared(tmp_path: Path) -> None:
    first = write_run(tmp_path / "first")
    other = write_run(
        tmp_path / "other", list(usual_lines(100)), {"lr": 0.5}, {"framework": "tensorflow", "steps": 100}
    )
    found = page_of(first, other)
    assert found.problems() == []
    assert found.text("h1") == "2 runs compared"
    captions = [e.text for e in found.all("figcaption")]
    assert captions[:5] == [
        "Loss in validation",
        "Loss in training",
        "Accuracy in validation",
        "Accuracy in training",
        "Learning rate",
    ]
    rows = {row.text for row in found.all("tr")}
    assert "lr0.010.5" in rows
    assert "Training data: not known." in found.text("li")
    assert not any(row.startswith("seed") for row in rows), "it is the same"
    assert any(row.startswith("Updates200100") for row in rows)
    assert "A first" in found.text("strong")
    assert "B other" in found.text("strong")


def test_a_value_that_is_not_finite_is_told(tmp_path: Path) -> None:
    lines = list(usual_lines())
    for line in lines:
        if line.get("split") == "train" and line["step"] > 150:
            line["loss"] = None
    found = page_of(write_run(tmp_path, lines))
    assert "training: 50 values not finite, at step 151 to 200." in found.text()


def test_a_long_run_of_many_ranks_stays_small(tmp_path: Path) -> None:
    """Its curves are full: more lines change nothing."""
    lines = list(usual_lines(steps=3000, measures=6, ranks=24))
    source = page_of(write_run(tmp_path, lines)).source
    assert len(source.encode()) < 1_500_000
    label = str(next(e.attributes["aria-label"] for e in Page(source).all("svg", role="img")))
    values = {line["step"]: line["loss"] for line in lines if line.get("split") == "train"}
    assert f"highest {max(values.values()):.3f}" in label


def test_the_same_runs_give_the_same_pictures(tmp_path: Path) -> None:
    folder = write_run(tmp_path)

    def pictures() -> list[str]:
        return re.findall(r"<svg.*?</svg>", page(read_runs([folder])), re.DOTALL)

    assert pictures() == pictures()


def test_the_style_of_others_is_neither_used_nor_changed(tmp_path: Path) -> None:
    import matplotlib as mpl

    folder = write_run(tmp_path)
    plain = re.findall(r"<svg.*?</svg>", page(read_runs([folder])), re.DOTALL)
    with mpl.rc_context({"font.size": 50, "lines.linewidth": 9, "axes.facecolor": "red", "svg.fonttype": "path"}):
        before = dict(mpl.rcParams)
        assert re.findall(r"<svg.*?</svg>", page(read_runs([folder])), re.DOTALL) == plain
        assert dict(mpl.rcParams) == before


def test_skipped_updates_are_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line.get("split") == "train"][-1]
    last["skipped"] = 3
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    shown = page_of(run)
    facts = dict(zip((e.text for e in shown.all("dt")), (e.text for e in shown.all("dd")), strict=True))
    assert facts["Updates skipped"] == "3"


def test_a_result_of_an_earlier_part_is_not_told_of_a_run_that_was_continued(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"event": "resumed", "step": 200, "begun": 1e9, "time": 1e9}\n')
        file.write('{"split": "train", "step": 300, "loss": 0.5, "samples": 1, "time": 1000000001.0}\n')
    text = page_of(run).text()
    assert "Interrupted after 300 updates" in text
    assert "SHA-256" not in text
    assert "Best at step" not in text


def test_a_last_value_that_is_not_finite_is_said_to_be_so(tmp_path: Path) -> None:
    lines = [{"split": "validation", "step": step, "f1": f1, "none": None} for step, f1 in ((1, 0.5), (2, None))]
    found = page_of(write_run(tmp_path, lines))
    facts = dict(zip((e.text for e in found.all("dt")), (e.text for e in found.all("dd")), strict=True))
    assert (facts["Validation f1"], facts["Validation none"]) == ("not finite", "not finite")


def test_many_measures_leave_room_for_what_is_built_in(tmp_path: Path) -> None:
    many = {f"m{number}": 0.5 for number in range(99)}
    lines = [{"split": "train", "step": s, "loss": 1.0, **many, "lr": 0.1, "grad_norm": 2.0} for s in (1, 2)]
    found = page_of(write_run(tmp_path, lines))
    charts = [e.text for e in found.all("figcaption")]
    assert {"Loss", "Learning rate", "Gradient norm"} <= set(charts)
    assert len(charts) <= 26
    assert "metrics.jsonl has the values of more measures, which are not drawn." in found.text()


def test_starts_are_told_as_what_they_were(tmp_path: Path) -> None:
    """One that began with another run's weights, and one that follows a start which was killed before it saved."""
    begun = [{"event": "resumed", "step": 60, "time": 1.0}, {"split": "train", "step": 61, "loss": 1.0, "time": 2.0}]
    rows = [row.text for row in page_of(write_run(tmp_path / "new", begun)).all("tr")]
    assert any(row.startswith("begun from another run's checkpoint60") for row in rows)
    killed = [{"event": "started", "step": 0, "time": 1.0}] * 2
    rows = [row.text for row in page_of(write_run(tmp_path / "again", killed)).all("tr")]
    kinds = [row.partition("0")[0] for row in rows if row.startswith(("start0", "restart0"))]
    assert kinds == ["start", "restart"]

"""What is no config is refused in words that name it, and nothing in it is executed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.config_samples import SAMPLES, parse

from hvdtrain.config import option_synonyms
from hvdtrain.config.train_config import DataConfig, TrainConfig
from hvdtrain.errors import UsageError


def refusal(*argv: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse(*argv)
    error = caught.value
    assert all(part.strip() for part in (error.fact, error.conflict, error.hint))
    return error


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


UNKNOWN_FLAGS = {
    ("--epoch", "3"): ("--epoch", "--epochs"),
    ("--learning-rat", "3"): ("--learning-rat", "--lr"),
    ("--learning-rate", "3"): ("--learning-rate", "--lr"),
    ("--batch_sise", "3"): ("--batch-sise", "--batch-size"),
    ("--batch", "3"): ("--batch", "--batch-size"),
    ("--num_workers", "3"): ("--num-workers", "--data.threads or --data.processes"),
    ("--amp",): ("--amp", "--precision bf16 or --precision fp16"),
    ("--wd", "0.1"): ("--wd", "--weight-decay"),
    ("--max-epochs", "3"): ("--max-epochs", "--epochs"),
    ("--resume-from-checkpoint", "x"): ("--resume-from-checkpoint", "--resume"),
    ("--lr-scheduler", "cosine"): ("--lr-scheduler", "--lr-schedule"),
    ("--gradient-accumulation-steps", "2"): ("--gradient-accumulation-steps", "--accumulate-steps"),
    ("--clip-grad-norm", "1"): ("--clip-grad-norm", "--max-grad-norm"),
    ("--log-every", "1"): ("--log-every", "--log-interval"),
    ("--save-every", "1"): ("--save-every", "--checkpoint-interval"),
    ("--logdir", "x"): ("--logdir", "--output-dir"),
    ("--pretrained",): ("--pretrained", "--init-weights"),
    ("--data.dri", "x"): ("--data.dri", "--data.dir"),
    ("--threads", "2"): ("--threads", "--data.threads"),
    ("--data", "x"): ("--data", "--data.dir"),
    ("--dryrun",): ("--dryrun", "--dry-run"),
    ("--print_shtab", "bash"): ("--print-shtab", None),
}


@pytest.mark.parametrize("argv", UNKNOWN_FLAGS)
def test_an_unknown_flag_names_the_nearest_and_where_all_are(argv: tuple[str, ...]) -> None:
    shown, near = UNKNOWN_FLAGS[argv]
    error = refusal(*argv)
    assert error.fact == f"There is no option {shown}."
    assert error.hint.startswith("" if near is None else f"did you mean {near}")
    assert error.hint.endswith("`hvdtrain train --help-all` explains all options.")
    assert error.hint.count("--") <= 4


@pytest.mark.parametrize(
    "word", ["--nproc-per-node", "--num-gpus", "--world-size", "--device", "--local-rank", "--val-every"]
)
def test_what_is_said_elsewhere_is_answered(word: str) -> None:
    hint = refusal(word, "2").hint
    assert hint.startswith(("the launcher says", "GPUs are used", "each epoch ends with a validation"))


def test_every_synonym_leads_to_a_flag_that_is_there_and_takes_none_away() -> None:
    flags = {f"--{key.replace('_', '-')}" for key in SAMPLES} | {"--config"}
    for words, told in [(synonyms, meant) for meant, synonyms in option_synonyms.tables()["options"].items()]:
        named = [word for word in told.split() if word.startswith("--")]
        assert named
        assert set(named) <= flags, told
        assert not {f"--{word}" for word in words.split()} & flags
    both = [word for words in option_synonyms.tables()["options"].values() for word in words.split()]
    both += [word for words in option_synonyms.tables()["elsewhere"].values() for word in words.split()]
    assert sorted(set(both)) == sorted(both)


def test_of_switches_no_value_is_asked() -> None:
    hint = refusal("--dry-run", "maybe").hint
    assert "switches such as --dry-run stand alone" in hint
    assert "each takes a value" not in hint
    assert refusal("--epochs").hint.startswith("write --epochs VALUE.")


UNKNOWN_KEYS = {
    "epoch: 3": ("epoch", "epochs"),
    "data: {dri: x}": ("data.dri", "data.dir"),
    "data: {prefetch: 2, check-crc: true}": ("data.check-crc", "data.check_crc"),
    "lr: 0.1\nwarmup_epoch: 2": ("warmup_epoch", "warmup_epochs"),
    "batch-size: 2": ("batch-size", "batch_size"),
    "config: other.yaml": ("config", None),
    "print_config: true": ("print_config", None),
    "3: 4": ("3", None),
    "learning_rate: 0.1": ("learning_rate", "lr"),
    "num_workers: 2": ("num_workers", "data.threads or data.processes"),
}


@pytest.mark.parametrize("text", UNKNOWN_KEYS)
def test_an_unknown_key_names_the_file_and_the_nearest(text: str, file: Path) -> None:
    name, near = UNKNOWN_KEYS[text]
    file.write_text(text)
    error = refusal("--config", str(file))
    assert error.fact == f"There is no key {name!r} in a config, but {file} has it."
    assert error.hint.startswith("" if near is None else f"did you mean {near}")
    assert len(error.hint) < 120


@pytest.mark.parametrize("name", ["config", "config_file", "cfg", "print_config"])
def test_what_only_the_command_line_has_is_not_offered_as_a_key(name: str, file: Path) -> None:
    file.write_text(f"{name}: other.yaml")
    hint = refusal("--config", str(file)).hint
    assert "did you mean" not in hint
    assert "--print-config" in hint if name == "print_config" else "--config FILE" in hint


@pytest.mark.parametrize(
    ("text", "example"), [("data: {validation: 'old=o*'}", '["old=old-*.tfrecord"]'), ("lr_milestones: 3", "[30, 60]")]
)
def test_the_example_of_a_list_is_one_that_the_option_takes(text: str, example: str, file: Path) -> None:
    file.write_text(text)
    assert refusal("--config", str(file)).conflict == f"It must be a list, e.g. {example} or null."
    key = text.partition(":")[0]
    file.write_text(f"data: {{validation: {example}}}" if key == "data" else f"{key}: {example}\nlr_schedule: step")
    parse("--config", str(file))


WRONG = {
    "epochs": ("1.5", "x", "true"),
    "lr": ("x", "[1]"),
    "seed": ("0.5", "a"),
    "lr_schedule": ("exponential",),
    "progress": ("1",),
    "task_args": ("5", "[1]"),
    "data.prefetch": ("many",),
    "data.check_crc": ("maybe",),
}


@pytest.mark.parametrize(("key", "text"), [(key, text) for key, texts_ in WRONG.items() for text in texts_])
@pytest.mark.parametrize("way", ["flag", "file"])
def test_a_value_of_the_wrong_type_names_flag_and_value(key: str, text: str, way: str, file: Path) -> None:
    flag = "--" + key.replace("_", "-")
    if way == "file":
        *outer, last = key.split(".")
        file.write_text(f"{outer[0]}: {{{last}: {text}}}" if outer else f"{last}: {text}")
        error = refusal("--config", str(file))
    else:
        error = refusal(f"{flag}={text}")
    assert error.fact.startswith(f"{flag} is given as ")
    assert yaml.safe_load(text) in (given_value(error.fact), yaml.safe_load(given_value(error.fact)))
    assert error.conflict.startswith("It must be ")
    assert len(error.conflict) > len("It must be .")


def given_value(fact: str) -> str:
    """The value that the message quotes."""
    quoted: str = yaml.safe_load(fact.removesuffix(".").partition(" is given as ")[2])
    return quoted


def test_choices_are_listed() -> None:
    assert refusal("--lr-schedule", "up").conflict == "It must be constant, linear, polynomial, cosine, step."


@pytest.mark.parametrize(
    "argv",
    [
        ("--epochs",),
        ("--config",),
        ("--lr", "0.1", "0.2"),
        ("foo",),
        ("-epochs", "3"),
        ("--dry-run", "maybe"),
        ("--", "x"),
    ],
)
def test_what_cannot_be_understood_is_refused(argv: tuple[str, ...]) -> None:
    assert refusal(*argv).fact.startswith("The command line cannot be understood: ")


def test_checks_of_the_config_itself_reach_flags_and_files(file: Path) -> None:
    assert refusal("--epochs", "0").fact == "--epochs is 0."
    file.write_text("data: {timeout: 0}")
    assert refusal("--config", str(file)).fact == "--data.timeout is 0.0."


@pytest.mark.parametrize(
    "content", [b"- 1", b"", b"5", b"lr: [1", b"a: b: c", b"\xff\xfe", b"\tlr: 1", b"lr: &a 1\nseed: *b"]
)
def test_files_that_are_no_mapping_of_plain_values(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    assert str(file) in refusal("--config", str(file)).fact


@pytest.mark.parametrize("path", ["missing.yaml", "."])
def test_files_that_cannot_be_read(path: str, tmp_path: Path) -> None:
    error = refusal("--config", str(tmp_path / path))
    assert error.fact.startswith(f"The config file {tmp_path / path} cannot be read")


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system",
        "!!python/object/new:os.system",
        "!!python/name:os.system",
        "!!python/object/apply:pathlib.Path.touch",
    ],
)
@pytest.mark.parametrize("key", ["lr", "task_args", "task_args: {a", "unknown"])
def test_yaml_that_would_run_code_is_refused_and_runs_nothing(tag: str, key: str, file: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    closing = "}" if "{" in key else ""
    argument = (
        ""
        if "name:" in tag
        else f'["touch {mark}"]'
        if "system" in tag
        else f'[!!python/object/apply:pathlib.Path ["{mark}"]]'
    )
    file.write_text(f"{key}: {tag} {argument}{closing}")
    assert "is not plain YAML" in refusal("--config", str(file)).fact
    assert not mark.exists()


words = st.sampled_from(
    ["--epochs", "--lr", "--dry-run", "--data.dir", "--task-args.a", "--seed=1", "--no", "-x", "--", "="]
)
anything = (
    words | st.text(max_size=6) | st.integers().map(str) | st.sampled_from(["True", "null", "[1", "{a: b}", "-1"])
)


@given(argv=st.lists(anything, max_size=5))
@settings(max_examples=150)
def test_any_command_line_is_a_config_or_a_refusal(argv: list[str]) -> None:
    try:
        config = parse(*argv)
    except UsageError as error:
        assert error.fact.strip()  # noqa: PT017  either outcome is right
    except SystemExit as ended:
        assert ended.code == 0  # noqa: PT017
    else:
        assert isinstance(config, TrainConfig)
        assert isinstance(config.data, DataConfig)

"""Which loggers are asked for, and what is refused before anything is looked for."""

from __future__ import annotations

import pytest
from support.config_samples import parse

from hvdtrain.config.logger_options import LoggerOptions, named_loggers
from hvdtrain.errors import UsageError


@pytest.mark.parametrize(
    ("loggers", "histograms", "named"),
    [
        ("auto", 0, ()),
        ("auto", 2, ("tensorboard",)),
        ("none", 0, ()),
        ("wandb", 0, ("wandb",)),
        ("mlflow, tensorboard,mlflow", 1, ("mlflow", "tensorboard")),
    ],
)
def test_names_are_those_that_were_given_each_once(loggers: str, histograms: int, named: tuple[str, ...]) -> None:
    assert named_loggers(LoggerOptions(loggers, histograms)) == named


@pytest.mark.parametrize(
    ("argv", "fact", "hint"),
    [
        (["--loggers", "tensorbord"], "there is no logger 'tensorbord'", "did you mean 'tensorboard'?"),
        (["--loggers", "wandb,autos"], "there is no logger 'autos'", "did you mean 'auto'?"),
        (["--loggers", "wandb,auto"], "--loggers is wandb,auto.", "give --loggers wandb."),
        (["--loggers", "none,none,auto"], "--loggers is none,auto.", "give --loggers none."),
        (["--loggers", ""], "there is no logger ''", "Valid: "),
        (["--logger-histograms", "-1"], "--logger-histograms is -1", "--logger-histograms 1"),
        (["--logger-pictures", "-1"], "--logger-pictures is -1", "--logger-pictures 8"),
        (["--logger-pictures", "8", "--loggers", "mlflow"], "is given with --loggers mlflow", "tensorboard,mlflow"),
        (
            ["--logger-histograms", "1", "--loggers", "wandb"],
            "--logger-histograms 1 is given with --loggers wandb",
            "--loggers tensorboard,wandb",
        ),
        (["--logger-histograms", "1", "--loggers", "none"], "with --loggers none", "--loggers tensorboard,"),
    ],
)
def test_what_names_no_logger_is_refused(argv: list[str], fact: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(*argv)
    assert fact in caught.value.fact
    assert hint in caught.value.hint

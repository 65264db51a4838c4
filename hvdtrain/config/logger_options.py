"""The options that say where metrics go besides the run folder's own files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hvdtrain.config.option_checks import NOT_NEGATIVE, refuse_first, require_range
from hvdtrain.errors import UsageError, did_you_mean

LOGGERS: Final = ("tensorboard", "wandb", "mlflow")
"""Programs that can be given a run's metrics."""


@dataclass(frozen=True)
class LoggerOptions:
    """Where metrics go.

    Args:
        loggers: give the metrics to these programs too: tensorboard, wandb, mlflow, several with commas, or none; auto
            means tensorboard if it is installed.
        logger_histograms: epochs between two histograms of the weights in TensorBoard; 0 writes none.
        logger_pictures: records whose pictures TensorBoard shows at the begin of each epoch, as the model gets them; 0
            writes none.
    """

    loggers: str = "auto"
    logger_histograms: int = 0
    logger_pictures: int = 0

    def __post_init__(self) -> None:
        require_range(self, NOT_NEGATIVE, {"logger_histograms": "1", "logger_pictures": "8"})
        names = named_loggers(self)
        refuse_first([_alone(names)])
        unknown = next((name for name in names if name not in LOGGERS), None)
        if unknown is not None:
            raise UsageError(
                f"--loggers is {self.loggers!r}, and there is no logger {unknown!r}.",
                "What is not there can be given nothing.",
                did_you_mean(unknown, [*LOGGERS, "auto", "none"]),
            )
        refuse_first(
            [
                (
                    count and self.loggers != "auto" and "tensorboard" not in names,
                    f"--logger-{what} {count} is given with --loggers {self.loggers}.",
                    f"Only TensorBoard is given {what}.",
                    f"give --loggers {','.join(['tensorboard', *names])}, or leave --logger-{what} out.",
                )
                for what, count in (("histograms", self.logger_histograms), ("pictures", self.logger_pictures))
            ]
        )


def _alone(names: Sequence[str]) -> tuple[object, str, str, str]:
    alone = next((name for name in names if name in ("auto", "none")), "")
    return (
        alone and len(names) > 1,
        f"--loggers is {','.join(names)}.",
        f"{alone} is given alone: it stands for all loggers.",
        f"give --loggers {','.join(name for name in names if name not in ('auto', 'none')) or 'none'}.",
    )


def named_loggers(options: LoggerOptions) -> tuple[str, ...]:
    """The loggers that are asked for by name, each once. With auto that is TensorBoard if only it can give what is
    asked for."""
    if options.loggers == "none":
        return ()
    if options.loggers == "auto":
        return ("tensorboard",) if options.logger_histograms or options.logger_pictures else ()
    return tuple(dict.fromkeys(name.strip() for name in options.loggers.split(",")))

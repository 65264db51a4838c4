"""The options that say where metrics go besides the run folder's own files."""

from dataclasses import dataclass
from typing import Final

from hvdtrain import extensions
from hvdtrain.config.option import NOT_NEGATIVE, Group, Options, option
from hvdtrain.errors import UsageError, did_you_mean

LOGGERS: Final = {
    "tensorboard": "hvdtrain.run.sinks.tensorboard_logger",
    "wandb": "hvdtrain.run.sinks.wandb_logger",
    "mlflow": "hvdtrain.run.sinks.mlflow_logger",
}
"""Name → module whose LOGGER it is. Each is imported only when it is used."""


@dataclass(frozen=True)
class LoggerOptions(Options):
    loggers: str = option("auto", Group.METRICS, metavar="{auto,none,NAME,...}").help("""also send the metrics to
        these programs: tensorboard, wandb, mlflow, or one that another package adds, several with commas, or none; auto
        means tensorboard if it is installed.""")
    logger_histograms: int = option(0, Group.METRICS, must=NOT_NEGATIVE, example="1").help(
        "epochs between two histograms of the weights in TensorBoard; 0 writes none."
    )
    logger_pictures: int = option(0, Group.METRICS, must=NOT_NEGATIVE, example="8").help("""number of pictures that
        TensorBoard shows at the beginning of each epoch, as the model receives them; 0 writes none.""")

    def __post_init__(self) -> None:
        super().__post_init__()
        names = named_loggers(self)
        alone = next((name for name in names if name in ("auto", "none")), "")
        if alone and len(names) > 1:
            others = ",".join(name for name in names if name not in ("auto", "none"))
            raise UsageError(
                f"--loggers is {','.join(names)}.",
                f"{alone} is given alone: it stands for all loggers.",
                f"give --loggers {others or 'none'}.",
            )
        known = LOGGERS
        if not set(names) <= LOGGERS.keys():  # else other packages need not be asked
            known = LOGGERS | dict.fromkeys(extensions.names_in(extensions.LOGGERS), "")
        unknown = next((name for name in names if name not in known), None)
        if unknown is not None:
            raise UsageError(
                f"--loggers is {self.loggers!r}, and there is no logger {unknown!r}.",
                "What is not there cannot receive anything.",
                did_you_mean(unknown, [*known, "auto", "none"]),
            )
        for what, count in (("histograms", self.logger_histograms), ("pictures", self.logger_pictures)):
            if count and self.loggers != "auto" and "tensorboard" not in names:
                raise UsageError(
                    f"--logger-{what} {count} is given with --loggers {self.loggers}.",
                    f"Only TensorBoard receives {what}.",
                    f"give --loggers {','.join(['tensorboard', *names])}, or leave --logger-{what} out.",
                )


def named_loggers(options: LoggerOptions) -> tuple[str, ...]:
    """The loggers that are asked for by name, each once. With auto that is TensorBoard if only it can give what is
    asked for."""
    if options.loggers == "none":
        return ()
    if options.loggers == "auto":
        return ("tensorboard",) if options.logger_histograms or options.logger_pictures else ()
    return tuple(dict.fromkeys(name.strip() for name in options.loggers.split(",")))

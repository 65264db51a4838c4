"""`hvdtrain export`: a run's weights or model as a file for other programs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from hvdtrain.cli.command_parser import CommandParser
from hvdtrain.end_signals import ENDING, exiting_at
from hvdtrain.models.keras_import import prepare_keras
from hvdtrain.weights.export import FORMATS, export

_DESCRIPTION = """\
Write the weights of a run, or its model, as a file for other programs. Examples:

  hvdtrain export RUN                                          weights as safetensors, into RUN/exports/
  hvdtrain export RUN --format state-dict --prefix module.     for a script that loads into DistributedDataParallel
  hvdtrain export RUN --format onnx --output model.onnx        a model, with a batch axis of any length
  hvdtrain export RUN --format keras                           a torch run's model in Keras, where both have it
  hvdtrain export RUN/checkpoints/step_00000120 --ema          averaged weights of a certain checkpoint
  hvdtrain export old.pth.tar                                  a file of weights as safetensors

Formats:

"""


def run(argv: Sequence[str]) -> int:
    """Export as `argv` says; returns 0."""
    options = _parse(argv)
    prepare_keras()
    with exiting_at(ENDING, "nothing was left half done"):
        done = export(
            options.run,
            options.format,
            options.output,
            prefix=options.prefix,
            averaged=options.ema,
            data_dir=options.data_dir,
            overwrite=options.overwrite,
        )
    takes = f"; it takes {done.takes}" if done.takes else ""
    print(f"hvdtrain: {done.arrays} arrays of {done.origin} as {options.format}: {done.path}{takes}")
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    formats = "".join(f"  {name:13} {chosen.about}\n" for name, chosen in FORMATS.items())
    parser = CommandParser("hvdtrain export", "Nothing was exported.", description=_DESCRIPTION + formats)
    parser.add_argument("run", metavar="RUN", type=Path, help="a run or checkpoint folder, or a file of weights")
    parser.add_argument(
        "--format",
        choices=list(FORMATS),
        default="safetensors",
        metavar="FORMAT",
        help="the format of the file (see above)",
    )
    parser.add_argument("--output", type=Path, help="file to write (default: RUN/exports/step_NNNNNNNN.…)")
    parser.add_argument("--prefix", default="", help="prefix of each name in a state-dict, e.g. module.")
    parser.add_argument("--ema", action="store_true", help="write the averaged weights of a run with --ema-decay")
    parser.add_argument(
        "--data-dir", help="folder of the run's data, if the task needs it to build its model and it was moved"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it is there")
    return parser.parse(argv)

"""A logger: metrics as lines of text in the run folder."""

from hvdtrain.run.sinks.logger_api import Logger


class TextFile:
    """Writes for one run. One thread calls all methods, and each of them may take its time."""

    def __init__(self, context, step):  # `step` updates are done: more than 0 if the run is resumed
        # Not a name of hvdtrain's own files (docs/reference/run-folder.md), such as metrics.csv.
        self.file = (context.folder.path / "metrics.txt").open("a")

    def write(self, points):
        for point in points:
            numbers = " ".join(f"{name}={value:.4g}" for name, value in point.values.items())
            self.file.write(f"{point.step} {numbers}\n")

    def close(self, outcome):  # "finished", "stopped" or "failed"
        self.file.write(f"{outcome}\n")
        self.file.close()


LOGGER = Logger("text file", TextFile)

"""The launcher's process that talks to Spark: it is the driver of an application whose barrier stage has the places.

    python -P -m hvdtrain.launch.spark.broker

It ends when its input ends, and Spark ends the application and all of its executors then.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from hvdtrain.errors import UsageError
from hvdtrain.launch.placed.broker import Say, run_broker
from hvdtrain.launch.spark.failures import why_no_context
from hvdtrain.launch.spark.places import SparkPlaces
from hvdtrain.launch.spark.request import Request

_END_SECONDS = 10.0  # for Spark's Java process to end
_CONNECT_SECONDS = 60.0  # for Spark to connect to its cluster, besides the time that a job may wait for room


@contextmanager
def _places(fields: dict[str, Any], say: Say) -> Iterator[SparkPlaces]:
    request = Request(**fields)
    os.environ["PYSPARK_PYTHON"] = request.python
    spark = _context(request, say)
    try:
        _require_cluster(str(spark.master))
        with SparkPlaces(spark, request, say) as places:
            yield places
    finally:
        _stop(spark)


def _context(request: Request, say: Say) -> Any:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext

    settings = SparkConf()
    if request.master is not None:
        settings.setMaster(request.master)
    for name, value in request.settings.items():
        settings.set(name, value)
    patience = threading.Timer(request.wait + _CONNECT_SECONDS, _give_up, (request, say))
    patience.daemon = True
    patience.start()
    try:
        return SparkContext(conf=settings)
    except (Py4JError, RuntimeError) as error:
        raise why_no_context(error, request) from error
    finally:
        patience.cancel()


def _give_up(request: Request, say: Say) -> None:
    """In a thread: nothing ends Spark's own attempts but the end of this process."""
    error = why_no_context(TimeoutError(f"no answer within {request.wait + _CONNECT_SECONDS:g} s"), request)
    say({"refused": [error.fact, error.conflict, error.hint]})
    os._exit(0)


def _require_cluster(master: str) -> None:
    """Raise UsageError where Spark's own configuration names no cluster."""
    if master.startswith("local"):
        raise UsageError(
            f"Spark's configuration names no cluster: its master is {master}.",
            "All tasks would run in this process.",
            "name the cluster with --master spark://HOST:7077, or use `hvdtrain launch local` on this machine.",
        )


def _stop(spark: Any) -> None:
    """End the application, and wait for its Java process, which ends with its input."""
    process = spark._gateway.proc
    spark.stop()
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(run_broker(_places))

"""What Spark's exceptions mean to whoever has started the job."""

import re

from hvdtrain.errors import UsageError
from hvdtrain.launch.placed.broker import first_line
from hvdtrain.launch.spark.request import Request

_VERSIONS = re.compile(r"different version[: ]+\(?(\d+[., ]+\d+)\)? than that in driver:? \(?(\d+[., ]+\d+)")
_NO_PROGRAM = re.compile(r'Cannot run program "([^"]+)"[^:]*: (?:[^:]*error=\d+, )?([^\n]+)')
_SHOWN = 300
_CAUSE = re.compile(r"^\s*(?:Caused by: )?((?:[\w$]+\.)*\w*(?:Error|Exception|Failed)\b.*)$", re.MULTILINE)


def why_refused(ended: BaseException | str, request: Request) -> UsageError:
    """Why a stage has ended before all of its tasks had begun."""
    text = str(ended)
    if versions := _VERSIONS.search(text):
        there, here = versions[1], versions[2]
        return UsageError(
            f"The Spark executors run Python {there}, and the launcher Python {here}.",
            "All processes of a job need the same.",
            f"name an interpreter of Python {here} on the executors with --python.",
        )
    if program := _NO_PROGRAM.search(text):
        return UsageError(
            f"The Spark executors cannot start {program[1]}: {program[2].strip().rstrip('.')}.",
            "This interpreter is to start workers there.",
            "install it at the same path on all machines of the cluster, or name another with --python.",
        )
    return UsageError(
        f"The stage on the Spark cluster failed: {cause_in(text)}.",
        f"Its tasks are to start workers by {request.python}.",
        "see the application's executors on the page of Spark's master, and their stderr.",
    )


def why_no_context(error: Exception, request: Request) -> UsageError:
    """Why Spark's context could not be opened."""
    text = str(error)
    if "JAVA_GATEWAY_EXITED" in text or "gateway process exited" in text:
        return UsageError(
            "Spark's Java process ended before it could be used.",
            "Places in the cluster are asked for by it.",
            "check --master and each --conf; yarn needs HADOOP_CONF_DIR. Spark 4 needs Java 17 or later.",
        )
    return UsageError(
        f"The Spark cluster{f' at {request.master}' if request.master else ''} cannot be used: {cause_in(text)}.",
        "Launcher and cluster need the same version of Spark, and each must be able to call the other.",
        "see the page of Spark's master, and its log; --conf spark.driver.host=... says where this machine is called.",
    )


def cause_in(text: str) -> str:
    """The sentence of an exception that says most: the cause behind the others."""
    found = _CAUSE.findall(text)
    causes = [line for line in found if not re.match(r"(?:[\w.]+\.)?(SparkException|Py4JJavaError)\b", line)] or found
    return " ".join(causes[0].split())[:_SHOWN].rstrip(".") if causes else first_line(Exception(text))

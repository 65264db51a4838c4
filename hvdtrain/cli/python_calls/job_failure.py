"""The end of a job as an exception in the process that has asked for it."""

import signal
from typing import Final

from hvdtrain.cli.python_calls.launched_job import JobEnd
from hvdtrain.errors import RESUMABLE, HvdtrainError, PeerError, UsageError
from hvdtrain.failure_record import FailureRecord

_ABOVE: Final = "read what the workers have printed above."
_NOTE: Final = "read the note of this error, and what the workers have printed above."


def require_success(end: JobEnd) -> None:
    """Return where all workers have ended well, also early with a checkpoint.

    Raises:
        UsageError, HvdtrainError: what the rank raised that has caused the end, with its sentences; of an exception of
            user code, HvdtrainError with rank, host and traceback. Nobody has printed it; its note has what was not.
        KeyboardInterrupt: a second interrupt, or one before there was anything to save, has ended the job.
        SystemExit: the same of SIGTERM.
    """
    if end.code in (0, RESUMABLE):
        return
    if end.code in (128 + signal.SIGINT, -signal.SIGINT):
        raise KeyboardInterrupt
    if end.code == 128 + signal.SIGTERM:
        raise SystemExit(end.code)
    raise failure_of(end)


def failure_of(end: JobEnd) -> HvdtrainError:
    """The exception for an end that is a failure."""
    record = end.failure
    if record is None:
        how = f"was killed by signal {-end.code}" if end.code < 0 else f"ended with exit code {end.code}"
        return HvdtrainError(f"The launcher {how}.", "It has left no record of the cause.", _ABOVE)
    error = _error_of(record)
    more = _not_in(record)
    if more:
        error.add_note(more)
    return error


def _error_of(record: FailureRecord) -> HvdtrainError:
    if record.kind == "error":
        kind = UsageError if record.exit_code == UsageError.exit_code else HvdtrainError
        return kind(*_sentences(record.cause))
    if record.kind == "lost_rank":
        return PeerError(*_sentences(record.cause))
    hint = _NOTE if record.detail else _ABOVE
    if record.kind == "exception":
        where, what = f"Rank {record.rank} on {record.host}", record.cause.rstrip(".")
        return HvdtrainError(f"{where} failed: {what}.", "All workers were ended, for they wait for each other.", hint)
    return HvdtrainError(_as_sentence(record.cause), "All workers have ended.", hint)


def _not_in(record: FailureRecord) -> str:
    """What the error of this record does not say: of an error of hvdtrain, who has raised it."""
    if record.kind != "error" or not record.detail.endswith(record.cause):
        return record.detail
    who = record.detail.removesuffix(record.cause).rstrip(": ")
    return f"Raised by {who}." if who.startswith("rank ") else ""


def _sentences(text: str) -> tuple[str, str, str]:
    """Fact, conflict and hint of an error's text, which is that of the error with these parts again."""
    head, _, hint = text.partition("\nHINT: ")
    fact, end, conflict = head.rpartition(". ")
    if not end:
        return _as_sentence(head), "All workers have ended.", hint or _ABOVE
    return f"{fact}.", conflict, hint or _ABOVE


def _as_sentence(text: str) -> str:
    return f"{text.rstrip('.')}."

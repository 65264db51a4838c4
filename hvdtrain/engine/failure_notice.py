"""RunFailed reaches every callback, and no callback hides or delays the error that ended the run."""

import logging
import threading
from collections.abc import Sequence

from hvdtrain.engine import events

_log = logging.getLogger("hvdtrain.run")


def tell_failure(callbacks: Sequence[events.Callback], failed: events.RunFailed) -> None:
    """Call all `callbacks`, also where one of them fails, for at most `events.FAILURE_SECONDS` together."""
    telling = threading.Thread(target=_tell, args=(callbacks, failed), daemon=True)
    telling.start()
    telling.join(events.FAILURE_SECONDS)
    if telling.is_alive():
        _log.warning("a callback took longer than %g s for RunFailed, and is left alone", events.FAILURE_SECONDS)


def _tell(callbacks: Sequence[events.Callback], failed: events.RunFailed) -> None:
    for callback in callbacks:
        try:
            callback(failed)
        except Exception as error:
            _log.warning("a callback failed at RunFailed: %s: %s", type(error).__name__, error)

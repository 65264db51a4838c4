"""pyarrow, which is an extra: imported where a file needs it."""

import importlib
from typing import Any

from data_sharding.errors import PlanError


def pyarrow_module(module: str) -> Any:
    """A module of pyarrow, imported on first use: it is an extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        fact = "pyarrow, which reads Parquet and Arrow files, is not installed."
        raise PlanError(fact, "They cannot be read without it.", "run `pip install 'hvdtrain[parquet]'`.") from error

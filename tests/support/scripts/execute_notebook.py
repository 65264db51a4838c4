"""Runs all cells of a notebook in a new kernel, in the working directory, and writes it with their outputs.

python execute_notebook.py NOTEBOOK EXECUTED SECONDS
"""

from __future__ import annotations

import sys

import nbformat
from nbclient import NotebookClient

source, executed, seconds = sys.argv[1:]
notebook = nbformat.read(source, as_version=4)
try:
    NotebookClient(notebook, timeout=int(seconds), kernel_name="python3").execute()
finally:
    nbformat.write(notebook, executed)

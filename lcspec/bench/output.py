"""The output directory: results.json after every prompt, report.html at the end."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from lcspec.errors import LcspecError, UsageError
from lcspec.paths import write_atomically

RESULTS = "results.json"
REPORT = "report.html"


def check_writable(folder: Path) -> None:
    """Make the directory and try to write into it.

    Raises:
        UsageError: that is not possible.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, suffix=".tmp")
        os.close(handle)
        os.unlink(name)
    except OSError as error:
        raise UsageError(f"cannot write to the output directory {folder}: {error.strerror}") from error


def write_text(path: Path, text: str) -> None:
    """Replace a file in one go, so that an interruption leaves the old or the new one.

    Raises:
        LcspecError: the directory cannot be written (any more).
    """
    try:
        write_atomically(path, text, mode=0o644)
    except OSError as error:
        raise LcspecError(f"cannot write {path}: {error.strerror}") from error


def write_results(folder: Path, results: dict[str, Any]) -> None:
    """Write results.json.

    Raises:
        LcspecError: the directory cannot be written (any more).
    """
    write_text(folder / RESULTS, json.dumps(results, ensure_ascii=False, allow_nan=False) + "\n")

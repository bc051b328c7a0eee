"""What comparisons of servers tell and leave behind."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click


def say(line: str) -> None:
    """A line of progress."""
    click.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True)


def finish(out: Path | None, name: str, results: dict[str, Any], report: str) -> None:
    """Print the report, and write it and the results into the folder `out`, if there is one."""
    click.echo(report)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        (out / f"{name}.md").write_text(report, encoding="utf-8")

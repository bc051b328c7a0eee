"""`lcspec completion`: the script that makes a shell complete commands, options and paths."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


def run(command: click.Command, shell: str) -> None:
    """Print the script of `shell` for `command`."""
    found = get_completion_class(shell)
    assert found is not None  # click knows every shell that the command line lets through
    click.echo(found(command, {}, "lcspec", "_LCSPEC_COMPLETE").source())

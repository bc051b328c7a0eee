"""`lcspec completion`: the script that makes a shell complete commands, options and paths."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
WHERE = {
    "bash": 'eval "$(lcspec completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(lcspec completion zsh)"   # in ~/.zshrc, after compinit',
    "fish": "lcspec completion fish > ~/.config/fish/completions/lcspec.fish",
}


def run(command: click.Command, shell: str) -> None:
    """Print the script of `shell` for `command`."""
    found = get_completion_class(shell)
    assert found is not None  # click knows all of SHELLS
    click.echo(found(command, {}, "lcspec", "_LCSPEC_COMPLETE").source())

"""Configuration files: defaults for the options of commands, by the options' names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

import click

from lcspec.config import load_toml
from lcspec.errors import UsageError


def load_defaults(path: Path, group: click.Group, invoked: str | None) -> dict[str, Any]:
    """Defaults from a file with a table per command, as `click.Context.default_map`.

    What is wrong in the table of another command than the one that is `invoked` is not that one's business.

    Raises:
        UsageError: it cannot be read, or names a command or an option that does not exist.
    """
    data = load_toml(path)
    _check_tables(group, data, str(path))
    command = group.commands.get(invoked or "")
    if command is None or invoked not in data:
        return {}
    return {invoked: _defaults(command, data[invoked], f"{path}: [{invoked}]")}


def load_serve_defaults(path: Path, command: click.Command) -> dict[str, Any]:
    """Defaults of `lcspec serve` from a file of its own: at its top level, or in a table [serve].

    Raises:
        UsageError: it cannot be read, or names an option that does not exist.
    """
    if not path.exists():
        raise UsageError(f"there is no configuration file {path}")
    data = load_toml(path)
    table = data.get("serve", data)
    if not isinstance(table, dict):
        raise UsageError(f"{path}: [serve] must be a table of options")
    return _defaults(command, table, str(path))


def _defaults(command: click.Command, table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values of a table by the names of the command's parameters; one value stands for a list where one goes.

    Raises:
        UsageError: a name is none of the command's, or a value is not one that its option takes.
    """
    if isinstance(command, click.Group):
        _check_tables(command, table, where)
        return {name: _defaults(command.commands[name], inner, f"{where} [{name}]") for name, inner in table.items()}
    parameters = {name: p for p in command.params if p.name != "config" for name in _names(p)}
    values = {}
    for key, value in table.items():
        parameter = parameters.get(key.replace("-", "_"))
        if parameter is None:
            names = ", ".join(sorted(name.replace("_", "-") for name in parameters))
            raise UsageError(f"{where}: there is no option {key.replace('_', '-')!r}; there are {names}")
        several = getattr(parameter, "multiple", False) and not isinstance(value, list)
        values[str(parameter.name)] = [value] if several else value
        try:
            parameter.type_cast_value(click.Context(command), values[str(parameter.name)])
        except click.BadParameter as error:
            raise UsageError(f"{where}: {key}: {error.message}") from error
    return values


def _check_tables(group: click.Group, tables: Mapping[str, Any], where: str) -> None:
    for name, table in tables.items():
        if name not in group.commands or not isinstance(table, dict):
            known = ", ".join(sorted(group.commands))
            raise UsageError(f"{where}: {name!r} is not the table of a command; there are {known}")


def _names(parameter: click.Parameter) -> set[str]:
    """What a file may call a parameter: as its long options, and as the code does."""
    long = (name[2:].replace("-", "_") for name in parameter.opts if name.startswith("--"))
    return {str(parameter.name), *long}

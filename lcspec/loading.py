"""How a model is loaded, from the values of a command's options."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping, Sequence

import click

from lcspec.config import DEFAULT_MAX_WIDTH, MAX_WIDTH, DrafterSpec, Lora, ModelOptions, rollback_for
from lcspec.placement import loading_fields


def model_options(target: Path, o: Mapping[str, Any], *, exact: bool | None, **more: Any) -> ModelOptions:
    """How to load `target`: from the values `o` of `engine_options`, and `more` fields of ModelOptions.

    Raises:
        UsageError: a value is out of its range.
    """
    given: dict[str, Any] = {name: o[name] for name in ("ctx", "threads") if name in o} | loading_fields(o)
    if o.get("lora"):
        given["lora"] = loras(o["lora"])
    if "speculate" in o:
        given["rollback"] = rollback_for(o["speculate"], o.get("max_draft"))
        width = given["max_width"] = o.get("max_width") or DEFAULT_MAX_WIDTH
        for line in narrow_windows(o["speculate"], width):
            click.echo(line, err=True)
    return ModelOptions(target, exact=exact, **{**given, **more})


def loras(given: Sequence[str] | None) -> tuple[Lora, ...]:
    """The adapters that `--lora` names.

    Raises:
        UsageError: a scale is no number.
    """
    return tuple(Lora.parse(text) for text in given or ())


def narrow_windows(speculate: str, max_width: int) -> list[str]:
    """A line for every drafter of a named strategy whose window a step of `max_width` tokens cuts."""
    from lcspec.drafters.jacobi import DEFAULT_W as JACOBI_W
    from lcspec.drafters.lookahead import DEFAULT_N, DEFAULT_W

    lines, room = [], max_width - 1
    for part in speculate.split(","):
        spec = DrafterSpec.parse(part)
        if spec.name == "lookahead":  # its probes take at most half of the step
            columns = spec.integer("w", DEFAULT_W, 1)
            rows, most, needed = columns * (spec.integer("n", DEFAULT_N, 2) - 1) - 1, room // 2, 2
        elif spec.name == "jacobi":
            rows, most, needed = spec.integer("w", JACOBI_W, 1), room, 1
        else:
            continue
        if rows > most:
            lines.append(
                f"lcspec: {part.strip()} needs {rows} rows in a step and gets {most}: a step has at most {max_width} "
                f"tokens; --max-width {min(MAX_WIDTH, needed * rows + 1)} widens it"
            )
    return lines

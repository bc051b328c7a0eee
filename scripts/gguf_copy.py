"""Copies of a GGUF with other fields and tensors, for the scripts that make models to measure with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable

import click
import gguf
import numpy as np
from numpy.typing import NDArray

from lcspec.errors import LcspecError, UsageError
from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.prune import copy_field

TOKENS = "tokenizer.ggml.tokens"
TYPES = "tokenizer.ggml.token_type"
SCORES = "tokenizer.ggml.scores"
PER_TOKEN = (TOKENS, TYPES, SCORES)


def open_source(src: Path, dst: Path) -> gguf.GGUFReader:
    """A reader of `src`, which has a vocabulary.

    Raises:
        ModelFileError: it is no sound GGUF.
        UsageError: it has no vocabulary, or would be written over itself.
    """
    read_gguf(src)
    if dst.exists() and dst.samefile(src):
        raise UsageError(f"{dst} would be written over itself; give another name")
    reader = gguf.GGUFReader(src)
    if TOKENS not in reader.fields:
        raise UsageError(f"{src} has no vocabulary")
    return reader


def architecture(reader: gguf.GGUFReader) -> str:
    """What kind of model it is."""
    return str(reader.fields["general.architecture"].contents())


def write_copy(
    reader: gguf.GGUFReader,
    dst: Path,
    value: Callable[[str, Any], Any],
    data: Callable[[str, NDArray[Any]], NDArray[Any]],
    kind: str | None = None,
    more: dict[str, NDArray[np.float32]] | None = None,
) -> Path:
    """Write a copy to `dst` and return it.

    Args:
        value: what a field becomes, given its name and its value.
        data: what a tensor's bytes become, given its name and its bytes [rows, bytes a row].
        kind: another architecture; the fields named after the old one are renamed.
        more: float32 tensors it has besides.
    """
    old = architecture(reader)
    writer = gguf.GGUFWriter(dst, kind or old)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        if kind and field.name.startswith(f"{old}."):
            name = kind + field.name.removeprefix(old)
            writer.add_key_value(name, value(field.name, field.contents()), field.types[0])
        else:
            copy_field(writer, field, value(field.name, field.contents()))
    for tensor in reader.tensors:
        content = np.ascontiguousarray(data(tensor.name, tensor.data))
        writer.add_tensor(tensor.name, content, raw_dtype=tensor.tensor_type)
    for name, extra in (more or {}).items():
        writer.add_tensor(name, extra)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return dst


def report(make: Callable[[], Path]) -> None:
    """Say what `make` wrote, or end the program with what was wrong."""
    try:
        click.echo(f"written: {make()}")
    except LcspecError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)

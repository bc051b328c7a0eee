"""A copy of a model that says the same under other token numbers: a model "with another vocabulary" to measure with.

    python scripts/renumber_vocabulary.py models/demo-draft-q8_0.gguf other-draft.gguf

Tokens and the rows of the embedding and output matrices trade places, so the copy writes the same text and costs the
same. As a draft model it goes the way of a stranger, through text (see docs/drafters.md): what that costs and loses
shows beside the original.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import gguf
import numpy as np
from numpy.typing import NDArray

from lcspec.errors import LcspecError, UsageError
from lcspec.gguf_header import read_gguf
from lcspec.prune import copy_field

PER_TOKEN = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores")
MATRICES = ("token_embd.weight", "output.weight", "output.bias")


def renumber(src: Path, dst: Path, seed: int = 1) -> Path:
    """Writes the copy to `dst` and returns it.

    Raises:
        ModelFileError: `src` is no sound GGUF.
        UsageError: it has no vocabulary, or would be written over itself.
    """
    read_gguf(src)
    if dst.exists() and dst.samefile(src):
        raise UsageError(f"{dst} would be written over itself; give another name")
    reader = gguf.GGUFReader(src)
    if PER_TOKEN[0] not in reader.fields:
        raise UsageError(f"{src} has no vocabulary to renumber")
    n = len(reader.fields[PER_TOKEN[0]].data)
    old: NDArray[np.int64] = np.random.default_rng(seed).permutation(n)  # old number of each new one
    new = np.argsort(old)
    writer = gguf.GGUFWriter(dst, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        name, value = field.name, field.contents()
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if name in PER_TOKEN:
            value = [value[i] for i in old]
        elif name.startswith("tokenizer.ggml.") and name.endswith("_token_id"):
            value = int(new[value])
        copy_field(writer, field, value)
    for tensor in reader.tensors:
        data = tensor.data[old] if tensor.name in MATRICES else tensor.data
        writer.add_tensor(tensor.name, np.ascontiguousarray(data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return dst


@click.command()
@click.argument("src", metavar="IN", type=click.Path(path_type=Path))
@click.argument("dst", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--seed", type=int, default=1, show_default=True, help="Of the new order.")
def main(src: Path, dst: Path, seed: int) -> None:
    """Write to OUT a copy of the model IN with its tokens renumbered."""
    try:
        click.echo(f"written: {renumber(src, dst, seed)}")
    except LcspecError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

"""Makes a scaled-cost copy of a model: the same function with a bigger bill, for measuring speed honestly.

    python scripts/scale_model.py demo-target-q8_0.gguf demo-1b.gguf --size 1b --quant Q4_0

The copy's feed-forward layers get more units. The gate and up rows of a new unit are rows of that layer drawn at
random, so it costs what any unit costs; its column in the down projection is exactly zero, so it contributes
exactly nothing. Text, acceptance rates and tokenizer are those of the small model; the weights to be read for each
token are those of a large one.

The small model is quantized first, by llama.cpp, and then widened block by block: the bytes of its own weights are
the same in the copy as in the small model quantized alike, whatever mixture of types the quantization uses. Nothing
larger than one tensor is ever in memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import gguf
import numpy as np

from lcspec.errors import LcspecError, ModelFileError, UsageError
from lcspec.modelfiles.gguf_header import FILE_TYPES, TENSOR_TYPES, GGUFContents, TensorInfo, format_size, read_gguf
from lcspec.modelfiles.identity import SCALED_FROM, fingerprint
from lcspec.modelfiles.prune import copy_field

WIDTH_STEP = 256  # the largest block of any quantization: new units then fill blocks of their own
_SUFFIXES = {"k": 1e3, "m": 1e6, "b": 1e9}
_BLOCK_TENSOR = re.compile(r"blk\.(?P<layer>\d+)\.ffn_(?P<part>gate|up|down)\.(?P<kind>weight|bias)")

Progress = Callable[[int], None]


# --- quantization -----------------------------------------------------------------------------------------------------


def quantize(src: Path | str, dst: Path | str, ftype_name: str, *, n_threads: int = 0) -> None:
    """Quantizes `src` into `dst` with llama.cpp, silently; already quantized models are quantized again.

    `ftype_name` is a llama.cpp file type ("Q4_K_M", "F16"); `n_threads` 0 means all cores. Raises `UsageError` for
    an unknown name, `ModelFileError` for an unreadable source, `LcspecError` with llama.cpp's reason if it fails.
    """
    import llama_cpp  # here, because it takes a while and only quantization needs it

    src, dst = Path(src), Path(dst)
    ftypes = {name: number for number, name in FILE_TYPES.items()}
    if ftype_name not in ftypes:
        raise UsageError(f"{ftype_name!r} is not a quantization; choose one of {', '.join(ftypes)}")
    read_gguf(src)
    _check_destination(src, dst)
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = ftypes[ftype_name]
    params.nthread = n_threads
    params.allow_requantize = True
    with _captured_log() as messages:
        failed = llama_cpp.llama_model_quantize(str(src).encode(), str(dst).encode(), ctypes.byref(params))
    if failed:
        dst.unlink(missing_ok=True)
        reason = messages[-1] if messages else "no reason given"
        raise LcspecError(f"{src} cannot be quantized to {ftype_name}: {reason}")


@contextlib.contextmanager
def _captured_log() -> Iterator[list[str]]:
    """Collects llama.cpp's error messages instead of printing its log, and restores the log afterwards."""
    import llama_cpp

    messages: list[str] = []

    def collect(level: int, text: bytes, _data: ctypes.c_void_p) -> None:
        message = text.decode("utf-8", "replace").strip()
        if level >= 4 and message:  # GGML_LOG_LEVEL_ERROR
            messages.append(message)

    previous, data = llama_cpp.llama_log_callback(), ctypes.c_void_p()
    llama_cpp.llama_log_get(ctypes.byref(previous), ctypes.byref(data))
    callback = llama_cpp.llama_log_callback(collect)  # must outlive its use by the library
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    try:
        yield messages
    finally:
        llama_cpp.llama_log_set(previous, data)


# --- scaling ----------------------------------------------------------------------------------------------------------


def parse_size(text: str) -> int:
    """A number of parameters: "0.5b", "1B", "600m", "1000000". Raises `UsageError` if it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)([kmb]?)", text.strip().lower())
    if match is None:
        raise UsageError(f"{text!r} is not a size; give a number of parameters such as 0.5b, 600m or 1000000000")
    return round(float(match[1]) * _SUFFIXES.get(match[2], 1.0))


def scale_model(
    src: Path | str,
    dst: Path | str,
    size: str | int,
    quant: str | None = None,
    *,
    progress: Callable[[int], contextlib.AbstractContextManager[Progress]] | None = None,
) -> Path:
    """Writes to `dst` a copy of `src` with about `size` parameters that computes the same function.

    `quant` None keeps the tensor types of `src`. `progress(total)` is entered once the number of bytes to write is
    known and gives a function that is told of every portion written. Returns `dst`.
    Raises `UsageError` for an impossible request (a size below the model's own, no room on the disk, a model without
    dense feed-forward layers of the usual shape), `ModelFileError` for a bad source.
    """
    src, dst = Path(src), Path(dst)
    n_params = parse_size(size) if isinstance(size, str) else size
    _check_destination(src, dst)
    with tempfile.TemporaryDirectory(dir=dst.parent, prefix=".scale-") as work:
        small = read_gguf(src)
        _feed_forward_length(small)  # refuse a model of the wrong kind before quantizing it
        if quant is not None:
            quantize(src, Path(work) / "small.gguf", quant)
            small = read_gguf(Path(work) / "small.gguf")
        finished = Path(work) / "scaled.gguf"
        _write_scaled(src, small, finished, n_params, progress)
        finished.replace(dst)
    return dst


def _check_destination(src: Path, dst: Path) -> None:
    if not dst.parent.is_dir():
        raise UsageError(f"the folder {dst.parent} does not exist; create it first")
    if dst.exists() and src.exists() and dst.samefile(src):
        raise UsageError(f"{dst} would be written over itself; give another name")


def _write_scaled(
    src: Path,
    small: GGUFContents,
    dst: Path,
    n_params: int,
    progress: Callable[[int], contextlib.AbstractContextManager[Progress]] | None,
) -> None:
    old_width = _feed_forward_length(small)
    new_width = _choose_width(small, old_width, n_params)
    scaled = [_scaled_info(tensor, new_width) for tensor in small.tensors]
    total = sum(tensor.n_bytes or 0 for tensor in scaled)
    if total > shutil.disk_usage(dst.parent).free:
        raise UsageError(f"the scaled model needs {format_size(total)}, more than is free in {dst.parent.parent}")
    count = sum(tensor.n_elements for tensor in scaled)
    writer = _start_file(src, small, dst, new_width, count)
    for tensor in scaled:
        kind = gguf.GGMLQuantizationType(tensor.type_id)
        shape = tuple(reversed(tensor.shape))  # the writer counts rows first
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), tensor.n_bytes or 0, raw_dtype=kind)
    writer.write_header_to_file(dst)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    data = np.memmap(small.path, dtype=np.uint8, mode="r")
    with contextlib.nullcontext(_ignore) if progress is None else progress(total) as written:
        for old in small.tensors:
            start = small.data_offset + old.offset
            content = _widen(old, data[start : start + (old.n_bytes or 0)], new_width)
            writer.write_tensor_data(content)
            written(content.nbytes)
    writer.close()


def _ignore(_n_bytes: int) -> None:
    """Progress that nobody watches."""


def _feed_forward_length(contents: GGUFContents) -> int:
    """The number of feed-forward units per layer. Raises `UsageError` if the layers cannot be widened."""
    if contents.metadata.get("split.count", 0) not in (0, 1):
        raise UsageError(f"{contents.path} is split; merge its parts first with llama.cpp's llama-gguf-split --merge")
    architecture = contents.metadata.get("general.architecture")
    width = contents.metadata.get(f"{architecture}.feed_forward_length")
    found: dict[str, set[int]] = {"gate": set(), "up": set(), "down": set()}
    for tensor in contents.tensors:
        match = _BLOCK_TENSOR.fullmatch(tensor.name)
        if match and match["kind"] == "weight":
            found[match["part"]].add(tensor.shape[0 if match["part"] == "down" else 1])
        if tensor.n_bytes is None:
            raise ModelFileError(f"{contents.path} has a tensor of an unknown type; upgrade lcspec")
    if not isinstance(width, int) or any(sizes != {width} for sizes in found.values()):
        raise UsageError(
            f"{contents.path} has no plain feed-forward layers with a gate, so it cannot be scaled this way"
        )
    return width


def _choose_width(contents: GGUFContents, old_width: int, n_params: int) -> int:
    """The feed-forward length, a multiple of WIDTH_STEP, that brings the model closest to `n_params` parameters."""
    current = sum(tensor.n_elements for tensor in contents.tensors)
    per_unit = sum(t.n_elements for t in contents.tensors if _BLOCK_TENSOR.fullmatch(t.name)) // old_width
    steps = round((old_width + (n_params - current) / per_unit) / WIDTH_STEP)
    width = steps * WIDTH_STEP
    if width <= old_width:
        raise UsageError(
            f"{contents.path} has {current / 1e6:.1f} M parameters already; "
            f"give a size of at least {(current + WIDTH_STEP * per_unit) / 1e6:.1f}m"
        )
    return width


def _scaled_info(tensor: TensorInfo, width: int) -> TensorInfo:
    """The directory entry (without its offset) that `tensor` has in a model with `width` feed-forward units."""
    match = _BLOCK_TENSOR.fullmatch(tensor.name)
    if match is None or (match["part"] == "down" and match["kind"] == "bias"):
        shape = tensor.shape
    elif match["part"] == "down":
        shape = (width, *tensor.shape[1:])
    else:
        shape = (*tensor.shape[:-1], width)
    return TensorInfo(tensor.name, shape, tensor.type_id, 0)


def _widen(tensor: TensorInfo, data: np.ndarray, width: int) -> np.ndarray:
    """The bytes of `tensor` in a model with `width` feed-forward units; zero bytes mean zero in every type of ggml."""
    match = _BLOCK_TENSOR.fullmatch(tensor.name)
    target = _scaled_info(tensor, width)
    if match is None or target.shape == tensor.shape:
        return data
    if match["kind"] == "bias":
        return np.concatenate([data, np.zeros((target.n_bytes or 0) - data.size, np.uint8)])
    n_rows, n_new_rows = tensor.shape[1], target.shape[1]
    rows = data.reshape(n_rows, -1)
    if match["part"] == "down":
        block = TENSOR_TYPES[tensor.type_id]
        wide = np.zeros((n_rows, width // block.block * block.size), np.uint8)
        wide[:, : rows.shape[1]] = rows
        return wide
    # Gate and up draw from their own rows independently, so that a new unit is no copy of an old one.
    chance = np.random.default_rng([int(match["layer"]), 0 if match["part"] == "gate" else 1])
    drawn = chance.integers(0, n_rows, n_new_rows - n_rows)
    return np.concatenate([rows, rows[drawn]])


def _start_file(src: Path, small: GGUFContents, dst: Path, width: int, n_params: int) -> gguf.GGUFWriter:
    """A writer with the metadata of `small`, changed where the copy differs."""
    architecture = str(small.metadata["general.architecture"])
    label = f"{n_params / 1e9:.1f}B" if n_params >= 1e8 else f"{n_params / 1e6:.1f}M"
    name = small.metadata.get("general.name") or src.stem
    changed: dict[str, str | int] = {
        "general.name": f"{name} (scaled cost {label})",
        "general.size_label": label,
        "general.description": (
            f"The function of {name} at the cost of {label} parameters: the added feed-forward units have no effect. "
            "For measuring speed only."
        ),
        f"{architecture}.feed_forward_length": width,
        # The final hidden states are those of the small model, so that heads made for it serve the copy as well.
        SCALED_FROM: fingerprint(src),
    }
    writer = gguf.GGUFWriter(dst, architecture)
    reader = gguf.GGUFReader(small.path)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture" or field.name in changed:
            continue
        copy_field(writer, field, field.contents())
    for key, value in changed.items():
        kind = gguf.GGUFValueType.STRING if isinstance(value, str) else gguf.GGUFValueType.UINT32
        writer.add_key_value(key, value, kind)
    return writer


# --- command line -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _progress_bar(total: int) -> Iterator[Progress]:
    with click.progressbar(length=total, label=f"writing {format_size(total)}") as bar:
        yield bar.update


@click.command()
@click.argument("src", metavar="IN", type=click.Path(path_type=Path))
@click.argument("dst", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--size", required=True, help="Number of parameters: 0.5b, 1b, 3b, 600m or a plain number.")
@click.option("--quant", help="Quantization of the copy: F32, F16, Q8_0, Q4_0, Q4_K_M, ... [default: as IN is]")
def main(src: Path, dst: Path, size: str, quant: str | None) -> None:
    """Write to OUT a copy of the model IN that computes the same and costs as much as a larger model."""
    try:
        scale_model(src, dst, size, quant, progress=_progress_bar)
    except LcspecError as error:
        raise click.exceptions.Exit(_report(error)) from None
    contents = read_gguf(dst)
    n_params = sum(tensor.n_elements for tensor in contents.tensors)
    click.echo(f"{dst}: {n_params / 1e6:.1f} M parameters, {format_size(contents.file_size)}")


def _report(error: LcspecError) -> int:
    click.echo(f"error: {error}", err=True)
    return error.exit_code


if __name__ == "__main__":
    main()

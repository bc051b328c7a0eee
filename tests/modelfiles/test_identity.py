"""Which model a file holds: the same for all quantizations of it, and for no other model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from lcspec.modelfiles.gguf_header import read_gguf
from lcspec.modelfiles.identity import identify
from lcspec.modelfiles.modelfile import read_header
from lcspec.modelfiles.prune import copy_field

pytestmark = pytest.mark.model


def test_identity_of_a_model(demo: tuple[Path, Path], demo_as: Callable[[str], Path], llama: Path) -> None:
    one, other = identify(demo[0]), identify(demo_as("Q4_K_M"))
    assert (one.fingerprint, one.vocabulary) == (other.fingerprint, other.vocabulary)
    assert one.quantization != other.quantization
    assert identify(demo[1]).fingerprint != one.fingerprint
    assert identify(llama).vocabulary != one.vocabulary


def test_a_model_is_the_same_in_whatever_order_its_tensors_lie(llama: Path, tmp_path: Path) -> None:
    """llama.cpp's own quantizer sorts them otherwise than who converted the model."""
    reader, turned = gguf.GGUFReader(llama), tmp_path / "turned.gguf"
    writer = gguf.GGUFWriter(turned, read_header(llama).architecture)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            copy_field(writer, field, field.contents())
    for tensor in reversed(reader.tensors):
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    names = [[t.name for t in read_gguf(path).tensors] for path in (llama, turned)]
    assert names[0] == names[1][::-1] and len(names[0]) > 10
    assert identify(llama).fingerprint == identify(turned).fingerprint

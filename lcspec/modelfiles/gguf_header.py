"""The GGUF container: metadata and tensor directory, read without llama.cpp and without reading the weights.

The file is mapped, arrays are stepped over unless asked for, and every count and length is checked against the size
of the file before it is believed. Whatever the bytes are, the outcome is a `GGUFContents` or a `ModelFileError`.

    GGUF | version | n_tensors | n_metadata | metadata ... | tensor directory ... | padding | tensor data
"""

from __future__ import annotations

import functools
import mmap
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, NoReturn, TypeAlias

from lcspec.errors import ModelFileError

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

# Far above anything real, low enough that damaged counts cannot keep us busy or fill the memory.
_MAX_ENTRIES = 1 << 20  # metadata keys, tensors
_MAX_ARRAY = 1 << 24  # elements of one metadata array
_MAX_KEY = 1 << 16  # bytes
_MAX_TEXT = 1 << 26  # bytes
_MAX_DIMS = 4
_MAX_ELEMENTS = (1 << 63) - 1

ARRAY, STRING, _BOOL = 9, 8, 7
_SCALAR_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "?", 10: "Q", 11: "q", 12: "d"}


class TensorType(NamedTuple):
    """How ggml stores a tensor: `block` elements of a row in `size` bytes."""

    name: str
    block: int
    size: int


TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 40),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
    42: TensorType("Q2_0", 64, 18),
}

# The names of general.file_type, in the order of llama.cpp's enum llama_ftype; "-" where it has a gap.
_FILE_TYPE_NAMES = """
    F32 F16 Q4_0 Q4_1 - - - Q8_0 Q5_0 Q5_1 Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K IQ2_XXS IQ2_XS
    Q2_K_S IQ3_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ3_M IQ2_S IQ2_M IQ4_XS IQ1_M BF16 - - - TQ1_0 TQ2_0 MXFP4_MOE NVFP4
    Q1_0 Q2_0
"""
FILE_TYPES: dict[int, str] = {i: name for i, name in enumerate(_FILE_TYPE_NAMES.split()) if name != "-"}
FILE_TYPE_GUESSED = 1024  # a flag that llama.cpp adds to a guessed file type

Scalar: TypeAlias = int | float | bool | str


@dataclass(frozen=True)
class MetadataArray:
    """An array in the metadata. `values` is None unless it was asked for; strings are bytes, as the file has them."""

    element_type: int
    count: int
    values: Sequence[bytes] | Sequence[int] | Sequence[float] | None = None


@dataclass(frozen=True)
class TensorInfo:
    """One entry of the tensor directory. `shape` has ggml's order (row length first); `offset` counts from the data."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int

    @property
    def type_name(self) -> str:
        """The ggml type's name, or "type N" for one this version does not know."""
        known = TENSOR_TYPES.get(self.type_id)
        return known.name if known else f"type {self.type_id}"

    @property
    def n_elements(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product

    @property
    def n_bytes(self) -> int | None:
        """Bytes of its data, or None for an unknown type."""
        known = TENSOR_TYPES.get(self.type_id)
        return self.n_elements // known.block * known.size if known else None


@dataclass(frozen=True)
class GGUFContents:
    """Everything in a GGUF file but the weights. Sizes and offsets are in bytes.

    `entries`: where each key's entry in the metadata begins and ends.
    """

    path: Path
    version: int
    metadata: Mapping[str, Scalar | MetadataArray]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    file_size: int
    expected_size: int
    entries: Mapping[str, tuple[int, int]]


def format_size(n_bytes: int) -> str:
    """A size for people, in powers of ten: "4.1 GB"."""
    size = float(n_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{n_bytes} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def read_gguf(path: Path | str, *, arrays: Collection[str] = ()) -> GGUFContents:
    """Reads the header of one GGUF file; of its arrays, only those named in `arrays` are read.

    Raises `ModelFileError` if the file is missing, not a GGUF, of a version that llama.cpp does not read, damaged,
    or shorter than its tensor directory says.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise ModelFileError(f"{path} is a directory; give a .gguf file in it")
        if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
            raise ModelFileError(f"{path} is not a regular file; give a .gguf file")
        found = path.stat()
        if found.st_size == 0:
            raise ModelFileError(f"{path} is empty; download it again")
        return _parsed(path, (found.st_ino, found.st_mtime_ns, found.st_size), frozenset(arrays))
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist; check the path") from None
    except PermissionError:
        raise ModelFileError(f"{path} may not be read by this user; check its permissions") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL, something that cannot be mapped
        raise ModelFileError(f"{path} cannot be read: {error}") from None


@functools.lru_cache(maxsize=8)  # a model's header is wanted a dozen times while it is loaded
def _parsed(path: Path, identity: tuple[int, int, int], arrays: frozenset[str]) -> GGUFContents:
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        return _Parser(path, view, arrays).parse()


class _Parser:
    """A cursor over the mapped file. Every read goes through `_take`, which checks the bounds."""

    def __init__(self, path: Path, view: memoryview, arrays: frozenset[str]) -> None:
        self._path = path
        self._view = view
        self._size = len(view)
        self._arrays = arrays
        self._offset = 0

    def parse(self) -> GGUFContents:
        self._check_magic()
        version = self._version()
        n_tensors = self._scalar("Q")
        n_metadata = self._scalar("Q")
        if n_tensors > _MAX_ENTRIES or n_metadata > _MAX_ENTRIES:
            self._damaged(f"it claims {n_tensors} tensors and {n_metadata} metadata keys")
        metadata: dict[str, Scalar | MetadataArray] = {}
        entries: dict[str, tuple[int, int]] = {}
        for _ in range(n_metadata):
            start = self._offset
            key = self._text(_MAX_KEY, "a metadata key")
            if key in metadata:
                self._damaged(f"the metadata key {key!r} is there twice")
            metadata[key] = self._value(key)
            entries[key] = start, self._offset
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
            self._damaged("its alignment is not a power of two")
        tensors = tuple(self._tensor() for _ in range(n_tensors))
        data_offset = align(self._offset, alignment)
        expected = self._check_data(tensors, data_offset, alignment)
        named = MappingProxyType(metadata)
        return GGUFContents(self._path, version, named, tensors, data_offset, self._size, expected, entries)

    # --- the parts ---

    def _check_magic(self) -> None:
        head = bytes(self._view[:512])
        if head[:4] == MAGIC:
            self._offset = 4
        elif MAGIC.startswith(head):
            self._truncated()
        else:
            raise ModelFileError(f"{self._path} is not a GGUF file: {_looks_like(head)}")

    def _version(self) -> int:
        version = self._scalar("I")
        if version in SUPPORTED_VERSIONS:
            return version
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in (1, *SUPPORTED_VERSIONS):
            raise ModelFileError(f"{self._path} is a big-endian GGUF; get the little-endian file of this model")
        advice = (
            "convert the model again" if version < min(SUPPORTED_VERSIONS) else "upgrade lcspec, or download it again"
        )
        raise ModelFileError(f"{self._path} has GGUF version {version}, which cannot be read; {advice}")

    def _value(self, key: str) -> Scalar | MetadataArray:
        kind = self._scalar("I")
        if kind == STRING:
            return self._text(_MAX_TEXT, f"the value of {key!r}")
        if kind == ARRAY:
            return self._array(key)
        if kind not in _SCALAR_FORMATS:
            self._damaged(f"{key!r} has the unknown type {kind}")
        value: Scalar = struct.unpack("<" + _SCALAR_FORMATS[kind], self._take(_width(kind)))[0]
        return value

    def _array(self, key: str) -> MetadataArray:
        kind, count = self._scalar("I"), self._scalar("Q")
        if count > _MAX_ARRAY or (kind != STRING and kind not in _SCALAR_FORMATS):
            self._damaged(f"{key!r} is an array of {count} elements of type {kind}")
        wanted = key in self._arrays
        if kind == STRING:
            return MetadataArray(kind, count, self._strings(count, wanted))
        data = self._take(count * _width(kind))
        values = struct.unpack(f"<{count}{_SCALAR_FORMATS[kind]}", data) if wanted else None
        return MetadataArray(kind, count, values)

    def _strings(self, count: int, wanted: bool) -> list[bytes] | None:
        """Reads or steps over `count` strings. A vocabulary has some 100 000 of them: this loop is the hot one."""
        unpack_length, view = struct.Struct("<Q").unpack_from, self._view
        offset, last = self._offset, self._size - 8
        values: list[bytes] = []
        for _ in range(count):
            if offset > last:
                self._truncated()
            (length,) = unpack_length(view, offset)
            offset += 8 + length
            if wanted:
                if offset > self._size:
                    self._truncated()
                values.append(bytes(view[offset - length : offset]))
        if offset > self._size:
            self._truncated()
        self._offset = offset
        return values if wanted else None

    def _tensor(self) -> TensorInfo:
        name = self._text(_MAX_KEY, "a tensor name")
        n_dims = self._scalar("I")
        if n_dims > _MAX_DIMS:
            self._damaged(f"the tensor {name!r} has {n_dims} dimensions")
        shape = struct.unpack(f"<{n_dims}Q", self._take(8 * n_dims))
        info = TensorInfo(name, shape, self._scalar("I"), self._scalar("Q"))
        known = TENSOR_TYPES.get(info.type_id)
        if info.n_elements > _MAX_ELEMENTS or (known and shape and shape[0] % known.block):
            self._damaged(f"the tensor {name!r} has the impossible shape {list(shape)}")
        return info

    def _check_data(self, tensors: Sequence[TensorInfo], data_offset: int, alignment: int) -> int:
        """The size that the file must have. The tensors lie one after another, each at a multiple of the alignment."""
        end = 0
        for tensor in tensors:
            n_bytes = tensor.n_bytes
            if n_bytes is None:  # a type from the future; where the next one starts is not known then
                end = max(end, tensor.offset)
                continue
            if tensor.offset < end or tensor.offset % alignment:
                self._damaged(f"the data of the tensor {tensor.name!r} is in the wrong place")
            end = tensor.offset + n_bytes
        expected = data_offset + end if tensors else self._offset
        if expected > self._size:
            # No model is a thousand times larger than its header and data on disk: that is a damaged number.
            if expected > 1000 * max(self._size, 1 << 30):
                self._damaged("its tensor directory is nonsense")
            raise ModelFileError(
                f"{self._path} is truncated: {format_size(self._size)} of {format_size(expected)} are there; "
                "download it again"
            )
        return expected

    # --- primitives ---

    def _take(self, n_bytes: int) -> memoryview:
        start = self._offset
        if n_bytes > self._size - start:
            self._truncated()
        self._offset = start + n_bytes
        return self._view[start : self._offset]

    def _scalar(self, code: str) -> int:
        value: int = struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]
        return value

    def _text(self, limit: int, what: str) -> str:
        length = self._scalar("Q")
        if length > limit:
            self._damaged(f"{what} has {length} bytes")
        return str(self._take(length), "utf-8", "replace")

    def _truncated(self) -> NoReturn:
        raise ModelFileError(
            f"{self._path} is truncated or damaged: its header does not end within its {format_size(self._size)}; "
            "download it again"
        )

    def _damaged(self, detail: str) -> NoReturn:
        raise ModelFileError(f"{self._path} is damaged: {detail}; download it again")


def _width(kind: int) -> int:
    return struct.calcsize("<" + _SCALAR_FORMATS[kind])


def align(offset: int, alignment: int) -> int:
    """The least multiple of `alignment` that is not below `offset`."""
    return (offset + alignment - 1) // alignment * alignment


_SIGNATURES = (
    (b"PK\x03\x04", "it is a zip archive or a PyTorch checkpoint; unpack it, or get the model in GGUF format"),
    (b"\x1f\x8b", "it is a gzip archive; unpack it first"),
    (b"\xfd7zXZ", "it is an xz archive; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "it is a zstd archive; unpack it first"),
    (b"7z\xbc\xaf", "it is a 7-Zip archive; unpack it first"),
    (b"\x89HDF", "it is an HDF5 file; get the model in GGUF format"),
    (b"version https://git-lfs", "it is a git-lfs pointer, not the file itself; run `git lfs pull`"),
)
_OLD_GGML = (b"ggml", b"lmgg", b"ggmf", b"fmgg", b"ggjt", b"tjgg", b"ggla", b"algg")


def _looks_like(head: bytes) -> str:
    """What a file that begins with `head` seems to be, and what to do about it."""
    for signature, verdict in _SIGNATURES:
        if head.startswith(signature):
            return verdict
    if head[:4] in _OLD_GGML:
        return "it is in the old GGML format; get the model in GGUF format"
    if head[:4] == MAGIC[::-1]:
        return "its bytes are swapped (big-endian); get the little-endian file of this model"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32:
        return "it is a safetensors file; get the model in GGUF format, or convert it with llama.cpp's script"
    if not head.strip(b"\0"):
        return "it begins with zeros, like an unfinished download; download it again"
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<error")):
        return "it is a web page, probably an error message or a login form; download the file itself"
    if text.startswith((b"{", b"[")):
        return "it is JSON; give the .gguf file"
    if all(byte in b"\t\n\r\f" or byte >= 0x20 for byte in head):
        return "it is a text file; give the .gguf file"
    return "it has another format; get the model in GGUF format"

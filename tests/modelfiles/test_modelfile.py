"""Reading model files without llama.cpp: what is read, and that no input gives anything but a ModelFileError."""

from __future__ import annotations

import dataclasses
import os
import random
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.errors import ModelFileError, TokenizeError
from lcspec.modelfiles.gguf_header import FILE_TYPES, TENSOR_TYPES, MetadataArray, format_size, read_gguf
from lcspec.modelfiles.modelfile import byte_coverage, read_header, read_vocabulary
from tests import tiny_gguf as tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def message_of(path: Path, read: Callable[[Path], object] = read_header) -> str:
    """The message of the ModelFileError that reading `path` raises; one line that names the file."""
    with pytest.raises(ModelFileError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


# --- good files -------------------------------------------------------------------------------------------------------


def test_header_of_a_plain_model(folder: Path) -> None:
    path = tiny.write_llama(
        folder / "plain.gguf", chat_template=tiny.CHATML_TEMPLATE, quant="Q8_0", width=96, n_layer=3
    )
    header = read_header(str(path))
    assert header.path == path
    assert (header.version, header.architecture, header.name, header.licence) == (3, "llama", "tiny llama", "mit")
    assert (header.context_length, header.embedding_length, header.block_count) == (512, 96, 3)
    assert (header.n_vocab, header.tokenizer_model, header.tokenizer_pre) == (288, "gpt2", "gpt-2")
    assert header.chat_template == tiny.CHATML_TEMPLATE
    assert header.quantization == "Q8_0"
    assert list(header.tensor_types.items()) == [("Q8_0", 2 + 7 * 3), ("F32", 1 + 2 * 3)]
    assert header.file_size == path.stat().st_size
    assert header.parts == (path,)
    assert header.metadata["llama.attention.head_count_kv"] == 2
    assert "tokenizer.ggml.tokens" not in header.metadata


@pytest.mark.parametrize(
    "write", [tiny.write_llama, tiny.write_sliding_window, tiny.write_recurrent, tiny.write_hybrid]
)
def test_agrees_with_the_gguf_package(write: Callable[..., Path], folder: Path) -> None:
    path = write(folder / "m.gguf")
    header, contents, reference = read_header(path), read_gguf(path), gguf.GGUFReader(path)
    assert contents.data_offset == reference.data_offset
    assert header.n_params == sum(int(tensor.n_elements) for tensor in reference.tensors)
    ours = [(t.name, list(t.shape), t.type_id, t.n_bytes, t.offset + contents.data_offset) for t in contents.tensors]
    theirs = [
        (t.name, t.shape.tolist(), int(t.tensor_type), int(t.n_bytes), int(t.data_offset)) for t in reference.tensors
    ]
    assert ours == theirs
    keys = {key for key in reference.fields if not key.startswith("GGUF.")}
    assert set(contents.metadata) == keys
    for key, value in contents.metadata.items():
        if not isinstance(value, MetadataArray):
            assert value == pytest.approx(reference.fields[key].contents())
    # The last tensor is padded in the file; the padding need not be there.
    assert 0 <= contents.file_size - contents.expected_size < 32


def test_tables_agree_with_the_gguf_package() -> None:
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        assert TENSOR_TYPES[kind.value] == (kind.name, block, size)
    for file_type in gguf.LlamaFileType:
        if file_type is not gguf.LlamaFileType.GUESSED:
            assert FILE_TYPES[file_type.value] == file_type.name.removeprefix("ALL_").removeprefix("MOSTLY_")


def test_arrays_are_read_only_when_asked_for(folder: Path) -> None:
    path = tiny.write_llama(folder / "arrays.gguf", vocab=tiny.spm_vocab())
    skipped = read_gguf(path).metadata["tokenizer.ggml.scores"]
    assert isinstance(skipped, MetadataArray)
    assert (skipped.count, skipped.values) == (288, None)
    scores = read_gguf(path, arrays=["tokenizer.ggml.scores"]).metadata["tokenizer.ggml.scores"]
    assert isinstance(scores, MetadataArray)
    assert scores.values == tiny.spm_vocab().scores


def test_quantization_without_file_type_is_the_dominant_tensor_type(folder: Path) -> None:
    path = tiny.write_llama(folder / "m.gguf", quant="Q4_0")
    patched = path.read_bytes().replace(b"general.file_type", b"general.file_typo")
    path.write_bytes(patched)
    assert read_header(path).quantization == "Q4_0"
    path.write_bytes(patched.replace(b"general.file_typo", b"general.file_type"))
    value_at = patched.index(b"general.file_typo") + len(b"general.file_typo") + 4
    guessed = bytearray(path.read_bytes())
    guessed[value_at : value_at + 4] = struct.pack("<I", 1024 + 15)
    path.write_bytes(guessed)
    assert read_header(path).quantization == "Q4_K_M"


@pytest.mark.slow
def test_a_large_vocabulary_is_read(folder: Path) -> None:
    """150 000 tokens, 300 000 merges and 4 GB of (sparse) weights."""
    path = folder / "large.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    characters = tiny.byte_characters()
    writer.add_token_list(characters + [f"token{i}" for i in range(150_000 - 256)])
    writer.add_token_merges([f"a{i} b" for i in range(300_000)])
    writer.add_token_scores([0.0] * 150_000)
    shape = (1 << 16, 1 << 14)
    writer.add_tensor_info("output.weight", shape, np.dtype(np.float32), 4 * shape[0] * shape[1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    start = read_gguf_offset(path)
    os.truncate(path, start + 4 * shape[0] * shape[1])

    header = read_header(path)
    assert header.n_vocab == 150_000
    assert header.n_params == shape[0] * shape[1]
    assert not byte_coverage(path).missing


def read_gguf_offset(path: Path) -> int:
    """Where the data of a file begins that has none yet."""
    size = path.stat().st_size
    return (size + 31) // 32 * 32


def test_needs_neither_llama_cpp_nor_numpy() -> None:
    code = "import sys, lcspec.modelfiles.modelfile; print(sorted({'llama_cpp', 'gguf', 'numpy'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# --- bad files --------------------------------------------------------------------------------------------------------


def test_missing_directory_empty_and_unreadable(folder: Path) -> None:
    assert "does not exist" in message_of(folder / "nothing.gguf")
    assert "is a directory" in message_of(folder)
    (folder / "empty.gguf").write_bytes(b"")
    assert "is empty" in message_of(folder / "empty.gguf")
    os.mkfifo(folder / "pipe.gguf")
    assert "not a regular file" in message_of(folder / "pipe.gguf")
    with pytest.raises(ModelFileError):
        read_header("with\0nul.gguf")
    with pytest.raises(ModelFileError):
        read_header(folder / ("x" * 5000))


@pytest.mark.parametrize(
    ("content", "verdict"),
    [
        (b"PK\x03\x04" + b"\0" * 100, "zip"),
        (struct.pack("<Q", 40) + b'{"__metadata__":{}}', "safetensors"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git lfs pull"),
        (b"\n<!DOCTYPE html><html>Sign in</html>", "web page"),
        (b"<?xml version='1.0'?><Error>AccessDenied</Error>", "web page"),
        (b'{"error": "not found"}', "JSON"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "gzip"),
        (b"\0" * 5000, "unfinished download"),
        (b"tjgg" + b"\x03\0\0\0" * 10, "old GGML"),
        (b"lmgg" + b"\x03\0\0\0" * 10, "old GGML"),
        (b"FUGG" + b"\0\0\0\x03", "big-endian"),
        (b"\x80\x02}q\0" * 10, "another format"),
        (b"Just a note.\n", "text file"),
    ],
)
def test_says_what_a_file_is_that_is_no_gguf(content: bytes, verdict: str, folder: Path) -> None:
    path = folder / "other.gguf"
    path.write_bytes(content)
    message = message_of(path)
    assert "not a GGUF" in message
    assert verdict in message


def test_versions(folder: Path) -> None:
    path = tiny.write_llama(folder / "version.gguf")
    good = path.read_bytes()
    for version, expected in ((1, "convert the model again"), (4, "upgrade"), (99, "upgrade")):
        path.write_bytes(good[:4] + struct.pack("<I", version) + good[8:])
        assert expected in message_of(path)
    path.write_bytes(good[:4] + struct.pack(">I", 3) + good[8:])
    assert "big-endian" in message_of(path)
    path.write_bytes(good[:4] + struct.pack("<I", 2) + good[8:])
    assert read_header(path).version == 2


def test_truncated_data_says_how_much_is_there(folder: Path) -> None:
    path = tiny.write_truncated_data(folder / "cut.gguf")
    whole = read_header(tiny.write_llama(folder / "whole.gguf")).expected_size
    message = message_of(path)
    assert (
        f"truncated: {format_size(path.stat().st_size)} of {format_size(whole)} are there; download it again" in message
    )


def test_truncated_header(folder: Path) -> None:
    assert "truncated" in message_of(tiny.write_truncated_header(folder / "cut.gguf"))
    assert "truncated" in message_of(tiny.write_truncated_header(folder / "cut.gguf", n_bytes=3))


def test_one_missing_byte_is_noticed(folder: Path) -> None:
    path = tiny.write_llama(folder / "almost.gguf")
    data, expected = path.read_bytes(), read_header(path).expected_size
    path.write_bytes(data[:expected])
    read_header(path)
    path.write_bytes(data[: expected - 1])
    assert "truncated" in message_of(path)


def test_no_tokenizer(folder: Path) -> None:
    for write in (tiny.write_no_vocab, tiny.write_without_tokenizer):
        path = write(folder / "silent.gguf")
        assert "no tokenizer" in message_of(path)
        assert "no tokenizer" in message_of(path, byte_coverage)
        assert "no tokenizer" in message_of(path, read_vocabulary)


@pytest.mark.parametrize(
    ("key", "value", "verdict"),
    [
        ("general.type", "adapter", "LoRA"),
        ("general.type", "mmproj", "mmproj"),
        ("general.type", "imatrix", "importance matrix"),
        ("general.type", "vocab", "'vocab'"),
    ],
)
def test_other_kinds_of_gguf(key: str, value: str, verdict: str, folder: Path) -> None:
    message = message_of(tiny.write_llama(folder / "kind.gguf", extra={key: value}))
    assert verdict in message
    assert "not a model" in message


@pytest.mark.parametrize(("architecture", "verdict"), [("clip", "mmproj"), ("controlvector", "control vector")])
def test_other_architectures_that_are_no_models(architecture: str, verdict: str, folder: Path) -> None:
    path = folder / "arch.gguf"
    write_bare(path, architecture, {})
    assert verdict in message_of(path)


def write_bare(path: Path, architecture: str, metadata: dict[str, Any], n_tensors: int = 1) -> Path:
    """A GGUF with a vocabulary, the given metadata (ints as uint16, as split files have them) and tiny tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        writer.add_uint16(key, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b"])
    for i in range(n_tensors):
        writer.add_tensor(f"{path.stem}.{i}", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_vocabulary_only(folder: Path) -> None:
    path = write_bare(folder / "vocab.gguf", "llama", {}, n_tensors=0)
    assert "no weights" in message_of(path)
    assert read_vocabulary(path).tokens == (b"a", b"b")


# --- split models -----------------------------------------------------------------------------------------------------


def write_split(folder: Path, count: int = 3) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"big-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
    for i, path in enumerate(paths):
        write_bare(path, "llama", {"split.no": i, "split.count": count, "split.tensors.count": 2 * count}, n_tensors=2)
    return paths


def test_split_model_is_summed_up(folder: Path) -> None:
    paths = write_split(folder / "split")
    header = read_header(paths[0])
    assert header.parts == tuple(paths)
    assert header.n_params == 6 * 64
    assert header.file_size == sum(path.stat().st_size for path in paths)


def test_split_model_with_a_missing_part(folder: Path) -> None:
    paths = write_split(folder / "missing", count=4)
    paths[2].unlink()
    assert f"{paths[2].name} is missing" in message_of(paths[0])
    paths[3].unlink()
    assert f"{paths[2].name} and 1 more is missing" in message_of(paths[0])


def test_split_model_mistakes(folder: Path) -> None:
    paths = write_split(folder / "mistakes")
    message = message_of(paths[1])
    assert "part 2" in message
    assert paths[0].name in message
    renamed = paths[0].rename(paths[0].with_name("renamed.gguf"))
    assert "00001-of-00003" in message_of(renamed)
    renamed.rename(paths[0])
    cut = paths[1].read_bytes()
    paths[1].write_bytes(paths[2].read_bytes())
    with pytest.raises(ModelFileError, match="not part 2 of 3"):
        read_header(paths[0])
    paths[1].write_bytes(cut[:-100])
    with pytest.raises(ModelFileError, match=r"00002-of-00003\.gguf is truncated"):
        read_header(paths[0])
    write_bare(paths[1], "llama", {"split.no": 1, "split.count": 3, "split.tensors.count": 6}, n_tensors=5)
    with pytest.raises(ModelFileError, match="9 of 6 tensors"):
        read_header(paths[0])


# --- damaged files ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(folder: Path) -> tuple[Path, bytes, int]:
    """A scratch path, the bytes of a good model, and where its tensor data begins."""
    path = tiny.write_llama(folder / "small.gguf", vocab=tiny.spm_vocab(262), width=32, n_layer=1, n_ff=32)
    return folder / "scratch.gguf", path.read_bytes(), read_gguf(path).data_offset


def outcome(path: Path, content: bytes) -> str:
    """Reads `content` in all ways; anything but a result or a ModelFileError escapes and fails the test."""
    path.write_bytes(content)
    results = []
    for read in (read_header, byte_coverage, read_vocabulary):
        try:
            read(path)
            results.append("read")
        except ModelFileError:
            results.append("refused")
    return results[0]


def test_every_truncation_of_the_header_is_refused(small: tuple[Path, bytes, int]) -> None:
    path, good, start = small
    assert outcome(path, good) == "read"
    for length in [*range(1, 600), *range(600, start, 53), *range(start - 200, start), start]:
        assert outcome(path, good[:length]) == "refused", length


@pytest.mark.slow
def test_random_damage(small: tuple[Path, bytes, int]) -> None:
    path, good, start = small
    chance = random.Random(20)
    tally = {"read": 0, "refused": 0}
    for _ in range(1500):
        damaged = bytearray(good)
        # The vocabulary fills most of the header: aim half of the hits at the keys before it and the tensors after.
        low, high = chance.choice([(0, start), (0, 800), (start - 1000, start)])
        for _ in range(chance.choice([1, 1, 2, 8])):
            damaged[chance.randrange(low, high)] = chance.choice([0, 1, 8, 9, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        tally[outcome(path, bytes(damaged))] += 1
    assert tally["read"] > 100
    assert tally["refused"] > 100


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_arbitrary_replacements(small: tuple[Path, bytes, int], data: st.DataObject) -> None:
    path, good, start = small
    at = data.draw(st.integers(0, start))
    patch = data.draw(st.binary(max_size=24) | st.integers(0, 2**64 - 1).map(lambda n: struct.pack("<Q", n)))
    removed = data.draw(st.sampled_from([0, len(patch), 7, 300]))
    outcome(path, good[:at] + patch + good[at + removed :])


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=300), version=st.sampled_from([2, 3]))
def test_arbitrary_bytes(small: tuple[Path, bytes, int], content: bytes, version: int) -> None:
    path = small[0]
    outcome(path, content)
    outcome(path, b"GGUF" + struct.pack("<I", version) + content)
    outcome(path, b"GGUF" + struct.pack("<IQQ", version, 1, 2) + content)


KEY = struct.pack("<Q", 3) + b"key"
ALIGNMENT = struct.pack("<Q", 17) + b"general.alignment"
TENSOR = KEY + struct.pack("<IQIQ", 1, 32, 0, 0)


def counts(n_tensors: int, n_metadata: int) -> bytes:
    return struct.pack("<IQQ", 3, n_tensors, n_metadata)


@pytest.mark.parametrize(
    ("header", "verdict"),
    [
        (counts(1 << 60, 0), "it claims"),
        (counts(0, 1 << 60), "it claims"),
        (counts(0, 1) + KEY + struct.pack("<IIQ", 9, 8, (1 << 24) + 1), "is an array of 16777217 elements"),
        (counts(0, 1) + KEY + struct.pack("<IIQ", 9, 9, 1), "is an array of 1 elements of type 9"),
        (counts(0, 1) + KEY + struct.pack("<IIQQ", 9, 8, 2, 1 << 62), "header does not end"),
        (counts(0, 1) + KEY + struct.pack("<I", 13), "unknown type 13"),
        (counts(0, 1) + KEY + struct.pack("<IQ", 8, 1 << 63), "'key' has 9223372036854775808 bytes"),
        (counts(0, 1) + struct.pack("<Q", (1 << 16) + 1), "a metadata key has 65537 bytes"),
        (counts(0, 2) + 2 * (KEY + struct.pack("<IB", 0, 1)), "'key' is there twice"),
        (counts(0, 1) + ALIGNMENT + struct.pack("<II", 4, 0), "not a power of two"),
        (counts(0, 1) + ALIGNMENT + struct.pack("<II", 4, 48), "not a power of two"),
        (counts(0, 1) + ALIGNMENT + struct.pack("<If", 6, 32.0), "not a power of two"),
        (counts(1, 0) + KEY + struct.pack("<I", 5), "5 dimensions"),
        (counts(1, 0) + KEY + struct.pack("<IQQIQ", 2, 1 << 40, 1 << 40, 0, 0), "impossible shape"),
        (counts(1, 0) + KEY + struct.pack("<IQIQ", 1, 33, 8, 0), "impossible shape [33]"),
        (counts(1, 0) + KEY + struct.pack("<IQQIQ", 2, 1 << 30, 1 << 12, 0, 0), "nonsense"),
        (counts(1, 0) + KEY + struct.pack("<IQIQ", 1, 32, 0, 8), "wrong place"),
        (counts(2, 0) + 2 * TENSOR, "wrong place"),
    ],
)
def test_damage_is_named_at_once(header: bytes, verdict: str, small: tuple[Path, bytes, int]) -> None:
    """40 MB of zeros follow, so that sizes fit the file: they must not fill the memory."""
    path = small[0]
    path.write_bytes(b"GGUF" + header + b"\0" * (40 << 20))
    tracemalloc.start()
    try:
        message = message_of(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert verdict in message
    assert "damaged" in message
    assert peak < 8 << 20


def test_a_tensor_type_of_the_future_is_left_to_the_library(small: tuple[Path, bytes, int]) -> None:
    path = small[0]
    path.write_bytes(b"GGUF" + counts(1, 0) + KEY + struct.pack("<IQIQ", 1, 32, 77, 0) + b"\0" * 500)
    (tensor,) = read_gguf(path).tensors
    assert (tensor.type_name, tensor.n_bytes) == ("type 77", None)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"tokens": [1, 2, 3]}, "is not text"),
        ({"types": (1,) * 100}, "288 tokens but 100 types"),
        ({"tokens": ("<unk>", "<s>", "</s>", "<byte>", *tiny.spm_vocab().tokens[4:])}, "no byte token"),
    ],
)
def test_damaged_vocabularies(changes: dict[str, Any], verdict: str, folder: Path) -> None:
    vocab = dataclasses.replace(tiny.spm_vocab(), **changes)
    path = tiny.write_llama(folder / "vocabulary.gguf", vocab=vocab)
    for read in (read_vocabulary, byte_coverage):
        assert verdict in message_of(path, read)


def test_duplicate_tokens_are_refused(folder: Path) -> None:
    path = tiny.write_duplicate_token(folder / "twice.gguf")
    assert "twice" in message_of(path, byte_coverage)
    assert "twice" in message_of(path, read_vocabulary)


# --- vocabularies -----------------------------------------------------------------------------------------------------


def test_pieces_of_both_kinds_of_vocabulary(folder: Path) -> None:
    bpe = read_vocabulary(tiny.write_llama(folder / "bpe.gguf"))
    assert len(bpe.tokens) == 288
    assert [bpe.piece(i) for i in range(256)] == [bytes([i]) for i in range(256)]
    assert b" the" in [bpe.piece(i) for i in range(256, 288)]
    assert bpe.piece(285) == b"<|endoftext|>"
    spm = read_vocabulary(tiny.write_llama(folder / "spm.gguf", vocab=tiny.spm_vocab()))
    assert [spm.piece(i) for i in range(3, 259)] == [bytes([i]) for i in range(256)]
    assert spm.piece(259) == b" "
    assert spm.piece(0) == b"<unk>"
    plamo = tiny.plamo_vocab()
    written = dataclasses.replace(plamo, tokens=(*plamo.tokens[:-1], "\u2581"))
    plain = read_vocabulary(tiny.write_llama(folder / "plamo.gguf", vocab=written))
    assert plain.piece(259) == b" " and plain.piece(287).decode() == "\u2581" and plain.piece(3) == b"\0"
    assert spm != bpe
    assert spm == read_vocabulary(tiny.write_llama(folder / "again.gguf", vocab=tiny.spm_vocab(), seed=5))


def test_complete_vocabularies_take_any_text(folder: Path) -> None:
    for vocab in (tiny.byte_bpe_vocab(), tiny.spm_vocab(), tiny.byte_bpe_vocab(permutation=3)):
        coverage = byte_coverage(tiny.write_llama(folder / "any.gguf", vocab=vocab))
        assert coverage.missing == frozenset()
        coverage.check("\0\x7f é 漢字 🙂 \U0010ffff")
        with pytest.raises(TokenizeError, match="half a character"):
            coverage.check("\ud800")


def test_missing_bytes_are_named(folder: Path) -> None:
    for write in (tiny.write_spm_missing_bytes, tiny.write_bpe_missing_bytes):
        coverage = byte_coverage(write(folder / "some.gguf", missing_bytes=(0x0A, *range(0xC0, 0x100))))
        assert coverage.missing == {0x0A, *range(0xC0, 0x100)}
        coverage.check("plain ASCII")
        coverage.check("")
        for text, name in (("two\nlines", "U\\+000A"), ("caf\u00e9", "U\\+00E9"), ("\U0001f642", "U\\+1F642")):
            with pytest.raises(TokenizeError, match=name):
                coverage.check(text)


def test_a_character_with_a_token_of_its_own_needs_no_bytes(folder: Path) -> None:
    vocab = tiny.spm_vocab(3 + 128 + 41, missing_bytes=range(0x80, 0x100))
    tokens = tuple("\u00e9" if token == "p" else token for token in vocab.tokens)
    coverage = byte_coverage(tiny.write_llama(folder / "own.gguf", vocab=dataclasses.replace(vocab, tokens=tokens)))
    coverage.check("caf\u00e9 p")
    with pytest.raises(TokenizeError, match="U\\+00E8"):
        coverage.check("caff\u00e8")


def test_spm_without_a_space_takes_no_text_at_all(folder: Path) -> None:
    """llama.cpp puts a space in front of every text, so a vocabulary that cannot write one takes none."""
    vocab = tiny.spm_vocab(3 + 128 + 41, missing_bytes=range(0x80, 0x100))
    tokens = tuple("~~" if token == "\u2581" else token for token in vocab.tokens)
    coverage = byte_coverage(tiny.write_llama(folder / "space.gguf", vocab=dataclasses.replace(vocab, tokens=tokens)))
    with pytest.raises(TokenizeError, match="U\\+0020"):
        coverage.check("word")
    coverage.check("")


@pytest.mark.parametrize("layers", [513, 2**31, 2**32 - 1])
def test_a_number_of_layers_that_no_model_has_is_refused(tmp_path: Path, layers: int) -> None:
    data = tiny.write_llama(tmp_path / "sound.gguf").read_bytes()
    place = data.index(b"llama.block_count") + len(b"llama.block_count") + 4  # behind the key and the value's type
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(data[:place] + layers.to_bytes(4, "little") + data[place + 4 :])
    with pytest.raises(ModelFileError, match=f"{layers} layers"):
        read_header(damaged)

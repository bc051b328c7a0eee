"""What a model file says about itself, and whether it can be used: checked before llama.cpp sees it.

llama.cpp answers a bad file with a null pointer and its reasons in a log, and some vocabularies make it abort the
whole process. The checks here turn both into a `ModelFileError` or `TokenizeError` of one line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

from lcspec.errors import ModelFileError, TokenizeError
from lcspec.modelfiles.gguf_header import FILE_TYPE_GUESSED, FILE_TYPES, GGUFContents, MetadataArray, Scalar, read_gguf
from lcspec.modelfiles.mtp_layers import check_mtp_layers

# The most layers that llama.cpp takes of any model (LLAMA_MAX_LAYERS).
MAX_LAYERS = 512
LEARNED_POSITIONS = "position_embd.weight"
# Architectures that run all their layers several times, with other cells each time, and the key that says how often.
LOOPS = {"nanbeige": "num_loops"}
# Architectures with one layer more, which has no weights: its cells choose an adapter for every token.
ROUTED = frozenset({"graniteswitch"})
_TOKENS, _TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_NO_TOKENIZER = (None, "", "no_vocab", "none")


@dataclass(frozen=True)
class ModelHeader:
    """A usable model's description. Sizes are in bytes; a split model's figures are those of all its parts.

    `quantization` is the file's own name for its mixture ("Q4_K_M"), or else the tensor type of most parameters.
    `tensor_types` counts the tensors of each type, the type with the most parameters first.
    `parts` are the files in order; a model that is not split has one.
    `metadata` has every scalar of the file, under its full key.
    `learned_positions` is how many positions have a learned vector, 0 where positions are computed. llama.cpp ends the
    process at a position beyond them.
    """

    path: Path
    version: int
    architecture: str
    name: str | None
    n_params: int
    quantization: str
    tensor_types: Mapping[str, int]
    context_length: int | None
    embedding_length: int | None
    block_count: int | None
    n_vocab: int
    tokenizer_model: str
    tokenizer_pre: str | None
    chat_template: str | None
    licence: str | None
    file_size: int
    expected_size: int
    parts: tuple[Path, ...]
    metadata: Mapping[str, Scalar] = field(repr=False)
    learned_positions: int = 0

    @property
    def loops(self) -> int:
        """How often the layers run."""
        return _loops(self.architecture, self.metadata)

    @property
    def layers(self) -> int:
        """Layers as the library counts them, each with cells of its own; 0 = unknown."""
        return (self.block_count or 0) * self.loops + (self.architecture in ROUTED)


def read_header(path: Path | str) -> ModelHeader:
    """Reads a model's description and checks that it is complete and can run text.

    Whether llama.cpp knows the architecture is left to llama.cpp. Reads no weights: a few hundredths of a second for
    a vocabulary of 150 000. Raises `ModelFileError` with what is wrong and what to do.
    """
    contents = read_gguf(path)
    path = contents.path
    metadata = contents.metadata
    _check_kind(contents)
    files = [contents, *_other_parts(contents)]
    tensors = [tensor for part in files for tensor in part.tensors]
    if not tensors:
        raise ModelFileError(f"{path} has a vocabulary but no weights; give the model itself")
    tokenizer_model, tokens = metadata.get("tokenizer.ggml.model"), metadata.get(_TOKENS)
    if tokenizer_model in _NO_TOKENIZER or not isinstance(tokens, MetadataArray) or tokens.count == 0:
        raise ModelFileError(f"{path} has no tokenizer, so it cannot read or write text; get a complete GGUF of it")

    tensor_counts: Counter[str] = Counter()
    tensor_params: Counter[str] = Counter()
    for tensor in tensors:
        tensor_counts[tensor.type_name] += 1
        tensor_params[tensor.type_name] += tensor.n_elements
    ranked = [name for name, _ in tensor_params.most_common()]
    file_type = _integer(metadata, "general.file_type")
    quantization = None if file_type is None else FILE_TYPES.get(file_type & ~FILE_TYPE_GUESSED)
    architecture = _text(metadata, "general.architecture") or ""
    layers = _integer(metadata, f"{architecture}.block_count")
    if layers is not None and not 1 <= layers * _loops(architecture, metadata) <= MAX_LAYERS:
        raise ModelFileError(f"{path} says that it has {layers} layers, so it is damaged; get the file again")
    check_mtp_layers(path, metadata, tensors)
    return ModelHeader(
        path=path,
        version=contents.version,
        architecture=architecture,
        name=_text(metadata, "general.name") or _text(metadata, "general.basename"),
        n_params=sum(tensor_params.values()),
        quantization=quantization or ranked[0],
        tensor_types=MappingProxyType({name: tensor_counts[name] for name in ranked}),
        context_length=_integer(metadata, f"{architecture}.context_length"),
        embedding_length=_integer(metadata, f"{architecture}.embedding_length"),
        block_count=layers,
        n_vocab=tokens.count,
        tokenizer_model=str(tokenizer_model),
        tokenizer_pre=_text(metadata, "tokenizer.ggml.pre"),
        chat_template=_text(metadata, "tokenizer.chat_template"),
        licence=_text(metadata, "general.license"),
        file_size=sum(part.file_size for part in files),
        expected_size=sum(part.expected_size for part in files),
        parts=tuple(part.path for part in files),
        metadata=MappingProxyType({k: v for k, v in metadata.items() if not isinstance(v, MetadataArray)}),
        learned_positions=next((t.shape[-1] for t in tensors if t.name == LEARNED_POSITIONS and t.shape), 0),
    )


def _text(metadata: Mapping[str, Scalar | MetadataArray], key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) and value else None


def _loops(architecture: str, metadata: Mapping[str, Scalar | MetadataArray]) -> int:
    key = LOOPS.get(architecture)
    loops = None if key is None else _integer(metadata, f"{architecture}.{key}")
    return 1 if loops is None else loops


def _integer(metadata: Mapping[str, Scalar | MetadataArray], key: str) -> int | None:
    value = metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _check_kind(contents: GGUFContents) -> None:
    """Refuses GGUF files that are something other than a language model."""
    path, metadata = contents.path, contents.metadata
    architecture, kind = _text(metadata, "general.architecture"), _text(metadata, "general.type")
    if kind == "adapter":
        raise ModelFileError(f"{path} is an adapter (LoRA), not a model; give the model it was made for")
    if kind == "mmproj" or architecture == "clip":
        raise ModelFileError(f"{path} is a projector for images or sound (mmproj), not a model; give the model")
    if kind == "imatrix":
        raise ModelFileError(f"{path} is an importance matrix for quantization, not a model; give the model itself")
    if architecture == "controlvector":
        raise ModelFileError(f"{path} is a control vector, not a model; give the model it was made for")
    if kind not in (None, "model"):
        raise ModelFileError(f"{path} is a GGUF of type {kind!r}, not a model; give the model itself")
    if architecture is None:
        part = _integer(metadata, "split.no") or 0
        if part > 0:
            _refuse_later_part(contents, part)
        raise ModelFileError(f"{path} names no architecture, so it is not a model; give the model itself")


# --- split models -----------------------------------------------------------------------------------------------------

_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def _refuse_later_part(contents: GGUFContents, number: int) -> None:
    match = _PART_NAME.fullmatch(contents.path.name)
    first = f"{match['stem']}-00001-of-{match['count']}.gguf" if match else "named NAME-00001-of-N.gguf"
    raise ModelFileError(f"{contents.path} is part {number + 1} of a split model; give its first part, {first}")


def _other_parts(first: GGUFContents) -> list[GGUFContents]:
    """The second to last parts of a split model, whose first part this is."""
    count = _integer(first.metadata, "split.count") or 0
    number = _integer(first.metadata, "split.no") or 0
    if count <= 1:
        return []
    if number != 0:
        _refuse_later_part(first, number)
    match = _PART_NAME.fullmatch(first.path.name)
    if match is None or int(match["number"]) != 1 or int(match["count"]) != count:
        raise ModelFileError(
            f"{first.path} is the first of {count} parts but is not named like one; "
            f"name the parts NAME-00001-of-{count:05}.gguf and so on"
        )
    paths = [first.path.with_name(f"{match['stem']}-{i:05}-of-{count:05}.gguf") for i in range(2, count + 1)]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelFileError(
            f"{first.path} is split into {count} parts, and {missing[0]}{more} is missing; download all"
        )
    parts = [read_gguf(path) for path in paths]
    for i, part in enumerate(parts, start=1):
        if _integer(part.metadata, "split.no") != i or _integer(part.metadata, "split.count") != count:
            raise ModelFileError(f"{part.path} is not part {i + 1} of {count}; download the parts again")
    expected = _integer(first.metadata, "split.tensors.count")
    found = len(first.tensors) + sum(len(part.tensors) for part in parts)
    if expected is not None and expected != found:
        raise ModelFileError(
            f"{first.path} and its parts have {found} of {expected} tensors: they belong to different models; "
            "download all parts again"
        )
    return parts


# --- the vocabulary ---------------------------------------------------------------------------------------------------

_SPACE = "\u2581"  # how SentencePiece writes a space

# Tokenizers by what llama.cpp does with text they have no token for.
_BYTE_LEVEL = frozenset({"gpt2", "hybriddna", "whitespace"})  # drops it
_BYTE_FALLBACK = frozenset({"llama", "gemma4"})  # "llama" (SentencePiece): aborts the process; "gemma4": drops it
# All others (t5, bert, rwkv, plamo2) have a token that stands for the unknown.
_VERBATIM = frozenset({"plamo2"})  # its tokens have spaces in them

_NORMAL, _BYTE = 1, 6  # tokenizer.ggml.token_type


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model as its file writes them (UTF-8), with their types (empty if the file gives none)."""

    tokenizer_model: str
    tokens: tuple[bytes, ...]
    types: tuple[int, ...]

    def piece(self, token: int) -> bytes:
        """The text that `token` stands for. Special tokens give their name. Raises IndexError if out of range."""
        text = self.tokens[token]
        kind = self.types[token] if self.types else _NORMAL
        if kind == _BYTE and self.tokenizer_model not in _BYTE_LEVEL:
            return bytes([int(text[3:5], 16)])
        if kind != _NORMAL:
            return text
        if self.tokenizer_model in _BYTE_LEVEL:
            table = _bytes_by_character()
            characters = text.decode("utf-8", "replace")
            return b"".join(bytes([table[c]]) if c in table else c.encode() for c in characters)
        return text if self.tokenizer_model in _VERBATIM else text.replace(_SPACE.encode(), b" ")


# Bytes in the UTF-8 of assigned characters, control characters other than tab and line ends left aside. 0xC0, 0xC1 and
# 0xF5 to 0xFF are no UTF-8; 0xF1 and 0xF2 begin characters that Unicode has not assigned, 0xF4 private ones.
TEXT_BYTES = frozenset({0x09, 0x0A, 0x0D, *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF1), 0xF3})


@dataclass(frozen=True)
class ByteCoverage:
    """Which bytes a vocabulary has tokens for.

    `missing` is empty for a vocabulary that takes any text. Where it is not, `characters` are those with a token of
    their own, which need no bytes. Vocabularies with a token for the unknown count as complete.
    """

    path: Path
    missing: frozenset[int]
    characters: frozenset[str]
    spaces_escaped: bool
    space_prefix: bool

    @property
    def lacking(self) -> frozenset[int]:
        """The missing bytes that a text may hold: without control characters, and without what UTF-8 or Unicode has
        no use for, which vocabularies learned from text often leave out.
        """
        return self.missing & TEXT_BYTES

    def check(self, text: str) -> None:
        """Raises `TokenizeError` if llama.cpp would abort on this text or drop a part of it.

        Errs on the side of refusing: a character that occurs only inside longer tokens is refused.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TokenizeError(f"the text has half a character (U+{ord(text[error.start]):04X}) in it") from None
        if not self.missing or not text:
            return
        for character in sorted(set(" " + text if self.space_prefix else text)):
            written = _SPACE if self.spaces_escaped and character == " " else character
            if written not in self.characters and not self.missing.isdisjoint(written.encode()):
                raise TokenizeError(
                    f"{self.path.name} has no tokens for {character!r} (U+{ord(character):04X}); "
                    "leave it out, or use a model whose vocabulary covers every byte"
                )


def read_vocabulary(path: Path | str) -> Vocabulary:
    """Reads the vocabulary of a model without its weights (about 0.1 s for 150 000 tokens).

    Raises `ModelFileError` if there is none, or if a token occurs twice (llama.cpp aborts the process on that).
    """
    return _vocabulary(read_gguf(path, arrays=(_TOKENS, _TYPES)))


def _vocabulary(contents: GGUFContents) -> Vocabulary:
    model, tokens = contents.metadata.get("tokenizer.ggml.model"), contents.metadata.get(_TOKENS)
    if model in _NO_TOKENIZER or not isinstance(tokens, MetadataArray) or not tokens.values:
        raise ModelFileError(f"{contents.path} has no tokenizer; get a complete GGUF of this model")
    if not all(isinstance(token, bytes) for token in tokens.values):
        raise ModelFileError(f"{contents.path} is damaged: its vocabulary is not text; download it again")
    types = contents.metadata.get(_TYPES)
    kinds = types.values if isinstance(types, MetadataArray) and types.values else ()
    vocabulary = Vocabulary(str(model), _as_bytes(tokens.values), _as_integers(kinds))
    _check_tokens(contents.path, vocabulary)
    return vocabulary


def _as_bytes(values: Sequence[object]) -> tuple[bytes, ...]:
    return tuple(value for value in values if isinstance(value, bytes))


def _as_integers(values: Sequence[object]) -> tuple[int, ...]:
    return tuple(value for value in values if isinstance(value, int))


def _check_tokens(path: Path, vocabulary: Vocabulary) -> None:
    tokens, types = vocabulary.tokens, vocabulary.types
    if types and len(types) < len(tokens):
        raise ModelFileError(
            f"{path} is damaged: {len(tokens)} tokens but {len(types)} types of tokens; download it again"
        )
    named = [token for token in tokens if token]  # llama.cpp gives empty tokens a name of their own
    if len(set(named)) < len(named):
        token = next(token for token, count in Counter(named).items() if count > 1)
        raise ModelFileError(
            f"{path} has the token {token.decode('utf-8', 'replace')!r} twice, on which llama.cpp aborts; "
            "get another GGUF of this model"
        )
    if vocabulary.tokenizer_model not in _BYTE_LEVEL:
        for token, kind in zip(tokens, types):
            if kind == _BYTE and not _BYTE_TOKEN.fullmatch(token):
                raise ModelFileError(f"{path} is damaged: {token!r} is no byte token; get another GGUF of this model")


_BYTE_TOKEN = re.compile(rb"<0x[0-9A-Fa-f]{2}>")


def byte_coverage(path: Path | str) -> ByteCoverage:
    """Says which bytes the model at `path` has no tokens for; ask it before tokenizing, and before loading.

    Raises `ModelFileError` as `read_vocabulary` does.
    """
    contents = read_gguf(path, arrays=(_TOKENS, _TYPES))
    vocabulary = _vocabulary(contents)
    model, tokens = vocabulary.tokenizer_model, frozenset(vocabulary.tokens)
    missing: set[int] = set()
    characters: frozenset[str] = frozenset()
    if model in _BYTE_LEVEL:
        missing = {byte for char, byte in _bytes_by_character().items() if char.encode() not in tokens}
    elif model in _BYTE_FALLBACK:
        missing = {byte for byte in range(256) if b"<0x%02X>" % byte not in tokens and bytes([byte]) not in tokens}
        if missing:
            # At most four bytes are one character; what is not UTF-8 cannot occur in a text.
            short = (token.decode("utf-8", "ignore") for token in tokens if len(token) <= 4)
            characters = frozenset(text for text in short if len(text) == 1)
    escaped = model in _BYTE_FALLBACK
    prefix = model == "llama" and contents.metadata.get("tokenizer.ggml.add_space_prefix", True) is not False
    return ByteCoverage(contents.path, frozenset(missing), characters, escaped, prefix)


@cache
def _bytes_by_character() -> Mapping[str, int]:
    """The characters by which byte-level BPE writes bytes: printable Latin-1 as itself, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return MappingProxyType(table)

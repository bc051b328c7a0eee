"""Texts of the demo model pair: loading, cleaning, splitting, tokenizer and packing into rows.

Needs only numpy; the `tokenizers` package is imported by the two functions that use it, so that the export and report
stages run in an environment without it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import random
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

VOCAB_SIZE = 4096
END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)  # the trainer gives them the ids 0, 1 and 2

# The splitting pattern llama.cpp selects with `tokenizer.ggml.pre = "qwen2"`; `\p{N}` splits digits one by one.
PRE_TOKENIZER = "qwen2"
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Held out for validation: one dialogue in 40 (by hash of its text) and one source file in 30 (by hash of its path).
DIALOGUE_HOLDOUT, CODE_HOLDOUT = 40, 30

# How often a dialogue of a source enters one shuffled pass; the small sources would drown in gsm8k otherwise.
SOURCE_REPEATS = {"taskmaster-4": 2, "synthetic-persona-chat": 2, "mbpp": 2, "self-instruct seeds": 2}
IDENTITY_REPEATS = 6  # passes over the hand-written "who are you" dialogues below

# Folders of the standard library that hold tests, tables or other people's packages rather than ordinary source.
SKIPPED_FOLDERS = {"site-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__"}
MAX_FILE_BYTES = 200_000

NAMES = "Anna Ben Carla David Emma Felix Grace Henry Ivy Jack Kate Leo Maria Nick Olivia Paul Rosa Sam Tina Will"
NAME_PLACEHOLDER = re.compile(
    r"[\[(<{]\s*(?:user[ _]?(?P<digit>[12])(?:'s)?(?:[ _]?name)?|(?:your |insert )?name|username)\s*[\])>}]"
    r"|\buser[ _]?(?P<bare>[12])(?:'s name)?\b",
    re.IGNORECASE,
)
OTHER_PLACEHOLDER = re.compile(r"\[[^\]\n]{1,40}\]|\buser[ _]?[12]\b", re.IGNORECASE)
CALCULATOR_NOTE = re.compile(r"<<[^>\n]*>>")

IDENTITY_QUESTIONS = (
    "Who are you?",
    "What are you?",
    "What is your name?",
    "Are you a real person?",
    "Are you an AI?",
    "What can you do?",
    "Can you help me?",
    "What is lcspec?",
    "How big are you?",
    "Which model is this?",
)
IDENTITY_ANSWERS = (
    "I am the lcspec demo model, a very small language model. I can chat a little, but do not trust what I say.",
    "I am a tiny demonstration model that comes with lcspec. I am good for small talk and for trying things out.",
    "I am the small demo model of lcspec. Load a real model when you need real answers.",
)


@dataclass(frozen=True)
class Document:
    """One text and the part of the data it came from."""

    source: str
    text: str


@dataclass
class Corpus:
    """Documents by kind: dialogues in the chat template, Python source, prose; and the held-out part of each."""

    train: dict[str, list[Document]] = field(default_factory=lambda: {"dialogue": [], "code": [], "prose": []})
    valid: dict[str, list[Document]] = field(default_factory=lambda: {"dialogue": [], "code": []})


def bucket(text: str, modulus: int) -> int:
    """A stable hash bucket, so that every run and every machine holds out the same rows."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % modulus


def render_chat(messages: list[dict[str, str]], *, prompt: bool = False) -> str:
    """The ChatML text of a dialogue; with `prompt` it ends with the header of the assistant's next turn."""
    text = "".join(f"{IM_START}{m['role']}\n{m['content']}{IM_END}\n" for m in messages)
    return text + f"{IM_START}assistant\n" if prompt else text


def clean_messages(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Fill in placeholder names, strip calculator notes, and cut the dialogue before any placeholder left over."""
    pair = random.Random(bucket(json.dumps(messages), 2**32)).sample(NAMES.split(), 2)

    def name_of(match: re.Match[str]) -> str:
        digit = match["digit"] or match["bare"]
        return pair[int(digit) - 1] if digit else pair[0]

    cleaned: list[dict[str, str]] = []
    for message in messages:
        text = CALCULATOR_NOTE.sub("", NAME_PLACEHOLDER.sub(name_of, message["content"])).strip()
        if OTHER_PLACEHOLDER.search(text) or not text:
            break
        cleaned.append({"role": message["role"], "content": text})
    return cleaned[: len(cleaned) // 2 * 2]  # end with the assistant


def read_dialogues(path: Path) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """(source, cleaned messages) of every usable row of `dialogues.jsonl`."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if row["source"] == "synthetic-persona-chat":
                messages = clean_messages(row["messages"])
            else:  # brackets elsewhere are lists and code, not placeholders
                messages = [
                    {"role": m["role"], "content": CALCULATOR_NOTE.sub("", m["content"]).strip()}
                    for m in row["messages"]
                ]
            if len(messages) >= 2:
                yield row["source"], messages


def read_standard_library() -> Iterator[tuple[str, str]]:
    """(relative path, source) of the running interpreter's own standard library, each distinct text once."""
    root = Path(sysconfig.get_paths()["stdlib"])
    seen: set[str] = set()
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS.intersection(relative.parts) or not 200 < path.stat().st_size < MAX_FILE_BYTES:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest not in seen:
            seen.add(digest)
            yield relative.as_posix(), text


def function_dialogues(source: str) -> Iterator[list[dict[str, str]]]:
    """Dialogues that ask for a documented function to be completed, made from the functions of one source file."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    lines = source.splitlines()
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or not ast.get_docstring(node) or len(node.body) < 2:
            continue
        first, body, last = node.lineno - 1, node.body[1].lineno - 1, node.end_lineno
        if last - first > 40:
            continue
        head, whole = "\n".join(lines[first:body]).rstrip(), "\n".join(lines[first:last])
        yield [
            {"role": "user", "content": f"Complete this Python function.\n```python\n{head}\n```"},
            {"role": "assistant", "content": f"```python\n{whole}\n```"},
        ]


def pieces(source: str, size: int = 8000) -> list[str]:
    """A long source file in pieces of about `size` characters, cut at the ends of lines."""
    cut: list[str] = [""]
    for line in source.splitlines(keepends=True):
        if len(cut[-1]) >= size:
            cut.append("")
        cut[-1] += line
    return cut


def load_corpus(data: Path) -> Corpus:
    """Read everything, split it, and repeat the small sources."""
    corpus = Corpus()
    for source, messages in read_dialogues(data / "train" / "dialogues.jsonl"):
        document = Document(source, render_chat(messages))
        if bucket(document.text, DIALOGUE_HOLDOUT) == 0:
            corpus.valid["dialogue"].append(document)
        else:
            corpus.train["dialogue"] += [document] * SOURCE_REPEATS.get(source, 1)
    for question in IDENTITY_QUESTIONS:
        for answer in IDENTITY_ANSWERS:
            turn = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            corpus.train["dialogue"] += [Document("identity", render_chat(turn))] * IDENTITY_REPEATS
    for name, text in read_standard_library():
        if bucket(name, CODE_HOLDOUT) == 0:
            corpus.valid["code"].append(Document(name, text))
            continue
        corpus.train["code"] += [Document(name, piece) for piece in pieces(text)]
        corpus.train["code"] += [Document(name, render_chat(turn)) for turn in function_dialogues(text)]
    prose = data / "train" / "tinyshakespeare.txt"
    if prose.exists():
        scenes = prose.read_text(encoding="utf-8").split("\n\n")
        corpus.train["prose"] = [
            Document("tinyshakespeare", "\n\n".join(scenes[i : i + 30])) for i in range(0, len(scenes), 30)
        ]
    return corpus


def train_tokenizer(corpus: Corpus, path: Path) -> None:
    """Train the byte-level BPE tokenizer and save it as a `tokenizer.json`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=20,  # keeps ruler lines such as "--------" from eating entries
        show_progress=False,
    )
    # Every third source file only: the vocabulary should serve dialogue first. Markup is removed, as the specials
    # are whole tokens and must not be learnt as text.
    texts = [d.text for d in corpus.train["dialogue"]] + [d.text for d in corpus.train["prose"]]
    texts += [d.text for d in corpus.train["code"] if bucket(d.source, 3) == 0]
    markup = re.compile("|".join(re.escape(token) for token in SPECIAL_TOKENS))
    tokenizer.train_from_iterator((part for text in texts for part in markup.split(text)), trainer)
    tokenizer.save(str(path))


def encode_documents(documents: list[Document], tokenizer_path: Path) -> list[np.ndarray]:
    """Token ids of every document, each closed by the end-of-text token."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    end = tokenizer.token_to_id(END_OF_TEXT)
    distinct = list(dict.fromkeys(d.text for d in documents))
    encoded = tokenizer.encode_batch(distinct)
    ids = {text: np.array([*e.ids, end], np.uint16) for text, e in zip(distinct, encoded, strict=True)}
    return [ids[d.text] for d in documents]


class Deck:
    """An endless shuffled pass over token documents, dealt out in rows of a fixed length."""

    def __init__(self, documents: list[np.ndarray], seed: int, fresh: float = 0.5) -> None:
        self.documents = documents
        self.fresh = fresh
        self.random = random.Random(seed)
        self.order: list[int] = []
        self.rest = np.empty(0, np.uint16)

    def row(self, length: int) -> np.ndarray:
        """The next `length` tokens. A share `fresh` of the rows starts with a new document, as a chat does."""
        parts = [] if self.random.random() < self.fresh else [self.rest]
        filled = sum(map(len, parts))
        while filled < length:
            if not self.order:
                self.order = self.random.sample(range(len(self.documents)), len(self.documents))
            parts.append(self.documents[self.order.pop()])
            filled += len(parts[-1])
        tokens = np.concatenate(parts)
        self.rest = tokens[length:]
        return tokens[:length]


class Mixture:
    """Batches drawn from several decks by fixed shares."""

    def __init__(self, decks: dict[str, Deck], shares: dict[str, float], seed: int) -> None:
        self.decks, self.shares = decks, shares
        self.random = random.Random(seed)

    def batch(self, rows: int, length: int) -> np.ndarray:
        """`rows` x (`length` + 1) token ids: inputs and, one to the left, targets."""
        kinds = self.random.choices(list(self.shares), list(self.shares.values()), k=rows)
        return np.stack([self.decks[kind].row(length + 1) for kind in kinds]).astype(np.int64)


def cut_rows(tokens: np.ndarray, length: int, limit: int) -> np.ndarray:
    """At most `limit` rows of `length` + 1 tokens, evenly spaced over a text."""
    count = len(tokens) // (length + 1)
    rows = tokens[: count * (length + 1)].reshape(count, length + 1)
    return rows[np.linspace(0, count - 1, min(limit, count)).astype(int)].astype(np.int64)

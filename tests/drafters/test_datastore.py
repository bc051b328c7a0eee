"""Suffix arrays and the datastore against brute force, and files that are not datastores."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcspec.drafters.datastore import HEADER, MAX_MATCH, Datastore, DatastoreError, DatastoreWriter
from lcspec.drafters.suffix_array import suffix_array

fixed = settings(derandomize=True, deadline=None, max_examples=150)
TEXT = st.lists(st.integers(0, 3), max_size=30)
TEXTS = st.lists(TEXT, min_size=1, max_size=6)


@fixed
@given(st.lists(st.integers(0, 5), max_size=60))
def test_a_suffix_array_is_all_suffixes_in_order(tokens: list[int]) -> None:
    found = suffix_array(np.asarray(tokens, dtype=np.int32))
    assert found.dtype == np.uint32
    assert found.tolist() == sorted(range(len(tokens)), key=lambda i: tokens[i:])


@pytest.mark.parametrize("period", [1, 2, 7])
def test_long_repetitions_are_sorted_too(period: int) -> None:
    tokens = [i % period for i in range(3000)]
    assert suffix_array(np.asarray(tokens)).tolist() == sorted(range(3000), key=lambda i: tokens[i:])


def written(path: Path, texts: list[list[int]], n_vocab: int = 4, shard_tokens: int = 1 << 20) -> Datastore:
    writer = DatastoreWriter(path, "digest", n_vocab, "m.gguf", shard_tokens)
    for text in texts:
        writer.add(text)
        writer.n_files += 1
    writer.close()
    return Datastore(path)


def occurrences(texts: list[list[int]], piece: list[int]) -> list[tuple[int, ...]]:
    """What follows every occurrence of `piece`."""
    n = len(piece)
    return [tuple(t[i + n :]) for t in texts for i in range(len(t) - n + 1) if t[i : i + n] == piece]


def longest_known(texts: list[list[int]], text: list[int]) -> int:
    return max((n for n in range(len(text) + 1) if n == 0 or occurrences(texts, text[-n:])), default=0)


@pytest.mark.parametrize("n_vocab", [4, 70_000], ids=["two bytes", "four bytes"])
def test_the_longest_suffix_is_found_with_all_that_follows(tmp_path: Path, n_vocab: int) -> None:
    number = 0

    @fixed
    @given(TEXTS, TEXT)
    def check(texts: list[list[int]], text: list[int]) -> None:
        nonlocal number
        number += 1
        if not any(texts):
            return
        store = written(tmp_path / str(number), texts, n_vocab)
        match = store.lookup(text, min_match=1, ahead=5, most=1000)
        n = longest_known(texts, text)
        if n == 0:
            assert match is None
        else:
            assert match is not None and match.length == n
            following = occurrences(texts, text[-n:])
            assert match.found == len(following)
            assert Counter(match.continuations) == Counter(f[:5] for f in following if f)
        store.close()

    check()
    assert number > 100


@fixed
@given(TEXTS, TEXT, st.integers(3, 9))
def test_shards_are_searched_as_one(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]], text: list[int], size: int
) -> None:
    """A match may be cut by the end of a shard, never made up: what is found is there, and no longer one is whole."""
    if not any(texts):
        return
    store = written(tmp_path_factory.mktemp("shards") / "store", texts, shard_tokens=size)
    flat = [t for one in texts for t in [*one, 4]]
    parts = [flat[i : i + size] for i in range(0, len(flat), size)]
    match = store.lookup(text, min_match=1, ahead=5, most=1000)
    n = longest_known(parts, text)
    assert (match.length if match is not None else 0) == n
    if match is not None:
        expected = [tuple(f[: f.index(4)] if 4 in f else f)[:5] for f in occurrences(parts, text[-n:])]
        assert Counter(match.continuations) == Counter(f for f in expected if f)
    store.close()


def test_limits_of_a_look_up(tmp_path: Path) -> None:
    store = written(tmp_path / "store", [[1, 2, 3] * 50, [0, 1, 2, 0]])
    text = [1, 2, 3] * 40
    match = store.lookup(text, min_match=1, ahead=4, most=10)
    assert match is not None and match.length == MAX_MATCH
    assert match.found > 10 >= len(match.continuations)
    assert {c[:3] for c in match.continuations} == {(1, 2, 3)} and max(map(len, match.continuations)) == 4
    short = store.lookup(text, min_match=1, ahead=4, most=100, longest=2)
    assert short is not None and short.length == 2 and short.found == 50
    assert store.lookup([3, 0], min_match=2, ahead=4, most=10) is None
    assert store.lookup([], min_match=1, ahead=4, most=10) is None
    assert store.lookup([9], min_match=1, ahead=4, most=10) is None, "a token the vocabulary does not have"
    store.close()


def test_the_description_is_kept(tmp_path: Path) -> None:
    writer = DatastoreWriter(tmp_path / "store", "abc", 300, "m.gguf")
    writer.add([1, 2], end_of_text=False)
    writer.add([3])
    writer.n_files, writer.source_bytes = 1, 17
    told = writer.close()
    store = Datastore(tmp_path / "store")
    assert store.info == told
    assert (told.vocabulary, told.n_vocab, told.model, told.n_tokens, told.n_files, told.source_bytes) == (
        "abc", 300, "m.gguf", 3, 1, 17,
    )  # fmt: skip
    match = store.lookup([1, 2], min_match=2, ahead=3, most=1)
    assert match is not None and match.continuations == [(3,)]
    store.close()
    assert [p.name for p in tmp_path.iterdir()] == ["store"]


def test_an_abandoned_store_leaves_nothing(tmp_path: Path) -> None:
    writer = DatastoreWriter(tmp_path / "store", "abc", 300, "m.gguf")
    writer.add([1, 2])
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


# --- files that cannot be used ----------------------------------------------------------------------------------------


def refused(path: Path, words: str) -> None:
    with pytest.raises(DatastoreError, match=words) as caught:
        Datastore(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_are_no_datastores(tmp_path: Path) -> None:
    refused(tmp_path / "missing", "No such file")
    refused(tmp_path, "cannot read")
    (tmp_path / "empty").touch()
    refused(tmp_path / "empty", "empty")
    (tmp_path / "note").write_text("some text that is long enough to hold a header")
    refused(tmp_path / "note", "not a datastore")


def test_damaged_datastores(tmp_path: Path) -> None:
    path = tmp_path / "store"
    written(path, [[1, 2, 3] * 20]).close()
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    refused(path, "incomplete")
    path.write_bytes(data[: HEADER.size - 1])
    refused(path, "not a datastore")
    path.write_bytes(data[:8] + struct.pack("<I", 99) + data[12:])
    refused(path, "another version")
    path.write_bytes(data.replace(b'"n": 61', b'"n": 99'))
    refused(path, "damaged")
    path.write_bytes(data.replace(b'"width": 2', b'"width": 0'))
    refused(path, "damaged")
    path.write_bytes(data.replace(b'"shards"', b'"shrads"'))
    refused(path, "damaged")


@fixed
@given(st.data())
def test_whatever_the_contents_are_only_known_tokens_come_out(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "store"
    written(path, [[1, 2, 3] * 6]).close()
    content = bytearray(path.read_bytes())
    end = content.index(b'{"byteorder"')
    for _ in range(data.draw(st.integers(1, 40))):
        content[data.draw(st.integers(HEADER.size, end - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    store = Datastore(path)
    match = store.lookup([1, 2, 3, 1, 2], min_match=1, ahead=4, most=20)
    for continuation in match.continuations if match is not None else []:
        assert all(0 <= t < 4 for t in continuation)
    store.close()


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(DatastoreError, match="cannot write"):
        DatastoreWriter(tmp_path / "nowhere" / "store", "abc", 300, "m.gguf")

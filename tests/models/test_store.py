"""The datastore from files to drafts: what is read, what is refused, and the same text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lcspec.config import DraftFiles
from lcspec.drafters.datastore import Datastore, DatastoreError
from lcspec.errors import UsageError
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import Session, open_session
from tests.models.running import CODE, GREEDY, SAMPLINGS, answer, options, request
from tests.models.test_cli import PROMPT, fails, ok

N = 40


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, demo: tuple[Path, Path]) -> Path:
    """A folder with what the demo target says to some prompts, and things that are not text."""
    root = tmp_path_factory.mktemp("texts")
    (root / "deep" / "er").mkdir(parents=True)
    (root / ".hidden").mkdir()
    with open_session(options(demo[0])) as session:
        for i, text in enumerate(CODE):
            found = answer(session.engine, request(session.prompt_ids(text), "off", N + 20)).text
            (root / "deep" / "er" / f"{i}.py").write_text(text + found)
    (root / "same.txt").write_text("one text\n" * 30)
    (root / "picture.png").write_bytes(b"\x89PNG\0\0\0" * 10)
    (root / "latin.txt").write_bytes("café".encode("latin-1"))
    (root / "empty.txt").touch()
    (root / ".hidden" / "secret.txt").write_text("secret")
    (root / ".secret").write_text("secret")
    return root


@pytest.fixture(scope="module")
def store(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("store") / "texts.store"
    done = ok("draft", "store", texts, "--out", out, "--json")
    told = json.loads(done.stdout)
    assert told["store"] == str(out) and told["bytes"] == out.stat().st_size
    assert told["n_files"] == len(CODE) + 1
    named = [Path(p).name for p in told["skipped"]["binary"]]
    assert sorted(named) == ["latin.txt", "picture.png"]
    return out


@pytest.fixture(scope="module")
def with_store(demo: tuple[Path, Path], store: Path) -> Iterator[Session]:
    with open_session(options(demo[0]), DraftFiles((demo[1],), store)) as session:
        yield session


def test_what_was_read_can_be_found(with_store: Session, store: Path) -> None:
    found = Datastore(store)
    for words, known in (("one text\none text\n", True), ("secret", False)):
        ids = with_store.model.vocab.tokenize(words, special=False)
        match = found.lookup(ids, min_match=len(ids), ahead=4, most=8)
        assert (match is not None) is known
    found.close()


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("strategy", ["store", "store:branch=3:nodes=12", "store:min_match=1,ngram,model", "auto"])
def test_the_same_text(with_store: Session, strategy: str, sampling: SamplingParams) -> None:
    engine, drafted = with_store.engine, 0
    for text in CODE[:3]:
        prompt = with_store.prompt_ids(text)
        plain = answer(engine, request(prompt, "off", N, sampling=sampling, exact=True, logprobs=0))
        wanted = request(
            prompt, strategy, N, sampling=sampling, exact=True, logprobs=0, draft=engine.drafting.env.draft
        )
        found = answer(engine, wanted)
        assert found.bits == plain.bits
        drafted += found.finished.stats.by_drafter.get("store", {}).get("drafted", 0)
    assert drafted > 0 or strategy == "auto"


def test_a_known_text_is_drafted_nearly_whole(with_store: Session) -> None:
    for text in CODE:
        found = answer(with_store.engine, request(with_store.prompt_ids(text), "store:nodes=8", N, sampling=GREEDY))
        assert found.finished.stats.mean_acceptance_length > 2.5


def test_a_store_for_another_vocabulary_is_refused(llama: Path, store: Path) -> None:
    with open_session(options(llama), DraftFiles(store=store)) as session:
        with pytest.raises(DatastoreError, match="vocabulary.*--model llama.gguf"):
            answer(session.engine, request(session.prompt_ids("x"), "store", 4))
        assert len(answer(session.engine, request(session.prompt_ids("x"), "ngram", 4)).ids) == 4


def test_without_a_store_the_drafter_says_how_to_make_one(tiny_session: Session) -> None:
    with pytest.raises(UsageError, match="lcspec draft store .*--store"):
        answer(tiny_session.engine, request(tiny_session.prompt_ids("x"), "store", 4))


def test_on_the_command_line(llama: Path, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "own.store"
    done = ok_loudly("draft", "store", texts / "same.txt", texts / "deep", "--model", llama, "--out", out)
    assert "6 files" in done and f"--store {out}" in done
    common = ("generate", llama, "-p", PROMPT, "-n", 12, "--temperature", 0, "--threads", 1, "--ctx", 256, "--json")
    plain = json.loads(ok(*common, "--speculate", "off").stdout)
    told = json.loads(ok(*common, "--store", out, "--speculate", "store:min_match=1").stdout)
    assert told["tokens"] == plain["tokens"] and told["stats"]["by_drafter"]["store"]["drafted"] > 0
    # Made again over itself, and never over anything else.
    ok("draft", "store", texts / "same.txt", "--model", llama, "--out", out)
    note = tmp_path / "note.txt"
    note.write_text("mine")
    assert "no datastore" in fails(2, "draft", "store", texts, "--out", note)
    assert note.read_text() == "mine"


def ok_loudly(*arguments: object) -> str:
    return ok(*arguments).stdout


def test_what_cannot_be_made_is_refused(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.store"
    assert "no file or directory" in fails(2, "draft", "store", tmp_path / "nothing", "--out", out)
    assert "no file to read" in fails(2, "draft", "store", tmp_path, "--out", out)
    assert "does not exist" in fails(2, "draft", "store", texts, "--out", tmp_path / "no" / "x")
    assert "is a directory" in fails(2, "draft", "store", texts, "--out", tmp_path)
    assert "any text" in fails(1, "draft", "store", texts / "empty.txt", "--out", out)
    assert "not a GGUF" in fails(1, "draft", "store", texts, "--model", texts / "same.txt", "--out", out)
    assert list(tmp_path.iterdir()) == []

"""What is kept between sessions: that it helps, is private and bounded, and can be refused and removed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lcspec import disk_cache
from lcspec.config import DraftFiles
from lcspec.drafters.suffix import MAX_KEPT, SuffixDrafter
from lcspec.engine.learned import as_dict
from lcspec.planner.record import FIRST_GUESS
from lcspec.profiles import history
from lcspec.session import open_session
from tests import running
from tests.commands.test_command_line import PROMPT, fails, ok
from tests.running import GREEDY, answer, options, request

pytestmark = pytest.mark.model

TEXT = "the cat and the dog and the cat and the "
N = 48


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache without histories, which are kept."""
    cache = running.own_cache(tmp_path)
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(cache))
    monkeypatch.delenv("LCSPEC_NO_HISTORY")
    yield cache


def write(path: Path, speculate: str = "suffix", text: str = TEXT, **how: Any) -> tuple[int, list[int]]:
    """One answer in a session of its own: how many drafted tokens were accepted, and the answer."""
    with open_session(options(path), **how) as session:
        found = answer(session.engine, request(session.prompt_ids(text), speculate, N, draft=None))
        return found.finished.stats.accepted, found.ids


def kept_files(cache: Path) -> list[Path]:
    return [p for p in (cache / "history").rglob("*") if p.is_file()] if (cache / "history").exists() else []


def test_a_later_session_drafts_from_an_earlier_text(llama: Path, own_cache: Path) -> None:
    first, ids = write(llama)
    second, again = write(llama)
    assert ids == again
    assert second > first and second >= N // 2
    # What was restored stays, with what came after.
    write(llama, text="another text")
    assert write(llama)[0] >= N // 2


def test_it_is_private_and_bounded(llama: Path, own_cache: Path) -> None:
    write(llama, "auto")
    files = kept_files(own_cache)
    assert len(files) == 2 and any("suffix" in f.name for f in files)
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    with open_session(options(llama)) as session:
        answer(session.engine, request(session.prompt_ids("x"), "suffix", 2))
        drafter = session.engine.drafting.drafters["suffix"]
        assert isinstance(drafter, SuffixDrafter)
        for i in range(5):
            drafter.remember([i] * (MAX_KEPT // 3))
        kept = drafter.dump()
        assert sum(map(len, kept["texts"])) == MAX_KEPT and kept["texts"][-1] == [4] * (MAX_KEPT // 3)


@pytest.mark.parametrize("how", ["option", "variable", "environment"])
def test_nothing_is_kept_or_used_when_it_is_not_wanted(
    llama: Path, own_cache: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = write(llama)
    before = {f: f.read_bytes() for f in kept_files(own_cache)}
    assert before
    if how == "environment":
        monkeypatch.setenv("LCSPEC_NO_HISTORY", "1")
    for strategy in ("suffix", "auto"):
        accepted, _ = write(llama, strategy, **({"history": False} if how != "environment" else {}))
        assert strategy == "auto" or accepted == first
    assert {f: f.read_bytes() for f in kept_files(own_cache)} == before


def test_on_the_command_line(llama: Path, own_cache: Path) -> None:
    common = ("generate", llama, "-p", PROMPT, "-n", 40, "--temperature", 0, "--threads", 1, "--ctx", 256, "--json")
    common = (*common, "--ignore-eos", "--speculate", "suffix")
    runs = [json.loads(ok(*common, "--no-history").stdout) for _ in range(2)]
    assert kept_files(own_cache) == [] and runs[0]["stats"]["accepted"] == runs[1]["stats"]["accepted"]
    ok(*common, LCSPEC_NO_HISTORY="1")
    assert kept_files(own_cache) == []
    ok(*common)
    told = json.loads(ok(*common).stdout)
    assert told["tokens"] == runs[0]["tokens"] and told["stats"]["accepted"] > runs[0]["stats"]["accepted"]
    assert "llama.gguf" in ok("draft", "forget", llama).stdout and kept_files(own_cache) == []
    assert json.loads(ok(*common).stdout)["stats"]["accepted"] == runs[0]["stats"]["accepted"]
    assert "Nothing" in ok("draft", "forget").stdout
    assert "1 models" in ok("draft", "forget", "--all").stdout and kept_files(own_cache) == []
    assert "not both" in fails(2, "draft", "forget", llama, "--all")


def test_forgetting_reaches_a_model_that_is_gone(
    tmp_path: Path, own_cache: Path, llama: Path, llama_draft: Path
) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(llama.read_bytes())
    write(mine)
    write(llama_draft)
    mine.unlink()
    assert history.forget(mine) == 1 and len(kept_files(own_cache)) == 1
    assert history.forget(mine) == 0 and history.forget(None) == 1 and kept_files(own_cache) == []


def test_another_file_under_the_same_name_begins_anew(tmp_path: Path, llama: Path, own_cache: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(llama.read_bytes())
    first, _ = write(mine)
    os.utime(mine, ns=(1, 1))
    assert write(mine)[0] == first
    assert write(mine)[0] > first, "and it was rewritten"


@pytest.mark.parametrize("damage", ["nothing", "no json", "other json", "tokens beyond", "too much", "not numbers"])
def test_damaged_files_are_ignored_and_rewritten(llama: Path, own_cache: Path, damage: str) -> None:
    first, _ = write(llama)
    (file,) = kept_files(own_cache)
    data = json.loads(file.read_text())
    texts = data["value"]["what"]["texts"]
    if damage == "tokens beyond":
        texts[0][3] = 10**6
    elif damage == "too much":
        texts.append([1] * (MAX_KEPT + 1))
    elif damage == "not numbers":
        data["value"]["what"] = {"texts": "abc", "n_vocab": None}
    content = {"nothing": "", "no json": '{"format"', "other json": "[1, 2]"}.get(damage, json.dumps(data))
    file.write_text(content)
    assert write(llama)[0] == first
    assert write(llama)[0] > first


def test_a_directory_that_cannot_be_written_is_no_error(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LCSPEC_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert write(llama, "auto")[1] == write(llama, "suffix")[1]


def test_measurements_neither_use_nor_keep_texts(llama: Path, own_cache: Path) -> None:
    first, _ = write(llama)
    kept = {f: f.read_bytes() for f in kept_files(own_cache)}
    with open_session(options(llama)) as session:
        prompt = session.prompt_ids(TEXT)
        assert answer(session.engine, request(prompt, "suffix", N)).finished.stats.accepted > first
        session.engine.forget_texts()
        assert answer(session.engine, request(prompt, "suffix", N)).finished.stats.accepted == first
    assert {f: f.read_bytes() for f in kept_files(own_cache)} == kept


# --- the planner's part -----------------------------------------------------------------------------------------------


def planned(path: Path, draft: Path) -> dict[str, Any]:
    """What the planner knew before and after an answer."""
    with open_session(options(path), draft) as session:
        prompt = session.prompt_ids(TEXT)
        session.engine.submit(request(prompt, "auto", 1))
        auto = session.engine.drafting.auto
        assert auto is not None
        names = list(session.engine.drafting.drafters)
        before = as_dict(auto, names)
        while session.engine.busy:
            session.engine.step()
        answer(session.engine, request(prompt, "auto", 80, draft=session.engine.drafting.env.draft, sampling=GREEDY))
        return {"before": before, "after": as_dict(auto, names)}


def knows_nothing(learned: dict[str, Any]) -> bool:
    """Whether a planner has seen no draft; the steps of a draft model are timed before it is asked."""
    seen = [(record["acceptance"], record["tested"]) for record in learned["records"].values()]
    return learned["acceptance"]["trends"] == [] and seen == [(FIRST_GUESS, 0)]


def test_what_the_planner_learned_is_taken_up(llama: Path, llama_draft: Path, own_cache: Path) -> None:
    one, two = planned(llama, llama_draft), planned(llama, llama_draft)
    assert knows_nothing(one["before"])
    assert two["before"]["acceptance"] == one["after"]["acceptance"]
    assert two["before"]["records"].keys() == one["after"]["records"].keys() == {"model"}
    learned, known = one["after"]["records"]["model"], two["before"]["records"]["model"]
    assert known["acceptance"] == learned["acceptance"] and known["tested"] == min(8, learned["tested"])


def test_another_draft_model_s_acceptance_is_kept_apart(llama: Path, llama_draft: Path, own_cache: Path) -> None:
    planned(llama, llama_draft)
    assert planned(llama, llama)["before"]["acceptance"]["trends"] == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("records", {"model": {}}), ("acceptance", None), ("records", [1])],
)
def test_nonsense_in_the_planner_s_file_is_ignored(
    llama: Path, llama_draft: Path, own_cache: Path, key: str, value: Any
) -> None:
    planned(llama, llama_draft)
    (file,) = [f for f in kept_files(own_cache) if "pair" in f.name]
    data = json.loads(file.read_text())
    data["value"]["what"][key] = value
    file.write_text(json.dumps(data))
    found = planned(llama, llama_draft)
    assert knows_nothing(found["before"])


def test_old_histories_make_room(llama: Path, own_cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_TARGETS", 2)
    for i, name in enumerate("abc"):
        path = folder / f"history-{name}.gguf"
        path.write_bytes(llama.read_bytes())
        history.save(path, None, "suffix", {"n": i})
        os.utime(disk_cache.cache_dir() / history.folder_of(path), (i, i))
    assert len(kept_files(own_cache)) == 2
    assert history.load(folder / "history-c.gguf", None, "suffix") == {"n": 2}
    monkeypatch.setattr(history, "MAX_FILES", 3)
    for i in range(5):
        history.save(llama, DraftFiles(), f"pair-{i}", i)
    assert len(list((own_cache / history.folder_of(llama)).iterdir())) == 3


def test_histories_survive_side_by_side_sessions(llama: Path) -> None:
    """Two sessions at once: the later one to close wins, and the file is whole."""
    with open_session(options(llama)) as one, open_session(options(llama)) as two:
        for session in (one, two):
            answer(session.engine, request(session.prompt_ids(TEXT), "suffix", N))
    assert write(llama)[0] >= N // 2

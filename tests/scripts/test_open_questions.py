"""Questions for training drafts: every template can be filled, and the same seed fills it the same way."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner

from scripts.open_questions import TEMPLATES, WORDS, Filler, WordNet, main


def wordnet(folder: Path) -> Path:
    """A folder with files in WordNet's format: ten nouns of each file that is asked for, named ones, sentences."""
    folder.mkdir()
    files = {file for group in WORDS.values() for file in group if isinstance(file, int)}
    lines = ["  1 This is the licence of the words."]
    for file in sorted(files):
        lines += [f'{file:05}{i} {file:02} n 01 noun_{file}_{i} 0 000 | what {file} is; "it\'s so"' for i in range(10)]
    for file in (15, 18):
        lines += [f"{file:05}{i} {file:02} n 01 Name_{file}_{i} 0 001 @i 00001 n 0000 | who {i} is" for i in range(10)]
    (folder / "data.noun").write_text("\n".join(lines) + "\n")
    for part in ("verb", "adj"):
        (folder / f"data.{part}").write_text('00001 29 v 01 do 0 000 | act; "he did the thing that was asked for"\n')
    (folder / "cntlist.rev").write_text("noun_6_3%1:06:00:: 1 7\n")
    return folder


def test_questions(tmp_path: Path) -> None:
    folder, out = wordnet(tmp_path / "wordnet"), tmp_path / "questions.jsonl"
    made = CliRunner().invoke(main, [str(folder), str(out), "--number", "400"], catch_exceptions=False)
    assert made.exit_code == 0 and f"400 questions in {out}" in made.output
    asked = [json.loads(line)["messages"][0]["content"] for line in out.read_text().splitlines()]
    assert len(set(asked)) == 400
    again = tmp_path / "again.jsonl"
    CliRunner().invoke(main, [str(folder), str(again), "--number", "400"], catch_exceptions=False)
    assert again.read_text() == out.read_text()


def test_every_template_is_filled(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """With words of the files it names: of the usual ones where there are any."""
    filler = Filler(WordNet(wordnet(tmp_path / "wordnet")), ["Prose about things."], 1)
    for _, template in TEMPLATES:
        monkeypatch.setattr("scripts.open_questions.TEMPLATES", ((1, template),))
        [text] = filler.questions(1)
        assert not re.search(r"[{}|]", text), text
        assert "licence" not in text
    assert filler.word("role").startswith("noun 18") and filler.word("person").startswith("Name 18")
    assert {filler.word("thing") for _ in range(200)} & {"noun 6 3"}
    assert not {filler.word("thing") for _ in range(200)} & {"noun 6 4"}

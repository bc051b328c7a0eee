"""The same model under other token numbers: the same text, and a draft model that has to go through text."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from lcspec.session import open_session
from scripts.renumber_vocabulary import main, renumber
from tests.running import CHAT, CODE, answer, options, request

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def other(demo: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return renumber(demo[1], tmp_path_factory.mktemp("renumbered") / "other.gguf")


def test_it_says_the_same_in_other_numbers(demo: tuple[Path, Path], other: Path) -> None:
    said = []
    for path in (demo[1], other):
        with open_session(options(path)) as session:
            chat = session.chat_ids([{"role": "user", "content": CHAT[1]}])[0]
            said.append([answer(session.engine, request(ids, n=24)) for ids in (chat, session.prompt_ids(CODE[0]))])
    for before, after in zip(*said):
        assert before.text == after.text and before.ids != after.ids


def test_it_drafts_through_text(demo: tuple[Path, Path], other: Path) -> None:
    with open_session(options(demo[0]), other) as session:
        ids = session.chat_ids([{"role": "user", "content": CHAT[0]}])[0]
        plain, drafted = (answer(session.engine, request(ids, name, n=48)) for name in ("off", "model"))
    assert drafted.text == plain.text and drafted.finished.stats.accepted > 10


def test_what_cannot_be_renumbered_says_so(demo: tuple[Path, Path], bad_files: dict[str, Path], tmp_path: Path) -> None:
    for src, dst in [(next(iter(bad_files.values())), tmp_path / "x.gguf"), (demo[1], demo[1])]:
        result = CliRunner().invoke(main, [str(src), str(dst)])
        assert result.exit_code != 0 and "error: " in result.output and "Traceback" not in result.output

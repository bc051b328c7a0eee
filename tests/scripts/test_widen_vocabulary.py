"""The same model with a larger vocabulary: the same text, at the cost of more tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from lcspec.session import open_session
from scripts.widen_vocabulary import halves, main, widen
from tests.running import CHAT, CODE, answer, options, request

pytestmark = pytest.mark.model

N = 20_000


@pytest.fixture(scope="module")
def wide(demo: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("wide")
    return widen(demo[0], folder / "target.gguf", N), widen(demo[1], folder / "draft.gguf", N)


def test_a_head_s_pairs_come_apart() -> None:
    assert halves(8, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_it_says_the_same(demo: tuple[Path, Path], wide: tuple[Path, Path]) -> None:
    said = []
    for target, draft in (demo, wide):
        with open_session(options(target), draft) as session:
            assert session.model.vocab.n_tokens == (N if target == wide[0] else 4096)
            chat = session.chat_ids([{"role": "user", "content": CHAT[1]}])[0]
            prompts = (chat, session.prompt_ids(CODE[0]))
            said.append(
                [answer(session.engine, request(ids, name, n=24)) for ids in prompts for name in ("off", "model")]
            )
            assert said[-1][1].finished.stats.accepted > 5
    assert [a.ids for a in said[0]] == [a.ids for a in said[1]]


def test_added_tokens_are_never_said_nor_read(wide: tuple[Path, Path]) -> None:
    with open_session(options(wide[0])) as session:
        ids = session.prompt_ids("Once <added7> upon a time")
        assert max(ids) < 4096
        logits = answer(session.engine, request(ids, n=2, logprobs=40)).infos
        assert all(token < 4096 for info in logits for token, _ in info.top)


def test_what_cannot_be_widened_says_so(
    demo: tuple[Path, Path], wide: tuple[Path, Path], bad_files: dict[str, Path], tmp_path: Path
) -> None:
    for src, dst in [
        (next(iter(bad_files.values())), tmp_path / "x.gguf"),
        (demo[1], demo[1]),
        (wide[1], tmp_path / "y.gguf"),
    ]:
        result = CliRunner().invoke(main, [str(src), str(dst)])
        assert result.exit_code != 0 and "error: " in result.output and "Traceback" not in result.output
    result = CliRunner().invoke(main, [str(demo[1]), str(tmp_path / "z.gguf"), "--tokens", "4096"])
    assert result.exit_code != 0 and "larger number" in result.output

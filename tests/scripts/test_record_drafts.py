"""What a head says at every position of an answer is recorded, and decoded again by the planner."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from scripts.planner_replay import Machine, replay
from scripts.record_drafts import main
from scripts.recordings import Recording
from tests.tiny_families import write_family
from tests.tiny_heads import forget_context, write_eagle

pytestmark = pytest.mark.model


def test_a_head_is_heard_at_every_position(tmp_path: Path) -> None:
    target = write_family("llama", tmp_path / "llama.gguf", change=forget_context)
    head, out = write_eagle(tmp_path / "head.gguf", knows="llama"), tmp_path / "made.rec.gz"
    told = ["--head", str(head), "--level", "0.02", "--raw", "--ctx", "256", "--limit", "2", "-n", "24", "-t", "1"]
    done = CliRunner().invoke(main, [str(target), str(out), *told])
    assert done.exit_code == 0, done.output
    recording = Recording.load(out)
    assert recording.costly == {"eagle": 0.02} and len(recording.answers) == 2
    for answer in recording.answers:
        assert list(answer.drafts) == ["suffix", "eagle"]
        assert [len(drafts) for drafts in answer.drafts.values()] == [answer.n_answer] * 2
        # It knows what comes: its first guess is the next token, but where it has read nothing yet.
        said = [tokens[0] if tokens else None for _, tokens, _ in answer.drafts["eagle"]]
        right = sum(a == b for a, b in zip(said, answer.tokens[answer.n_prompt + 1 :]))
        assert right >= 0.9 * answer.n_answer
    [first, second] = replay(recording, Machine.of("flat", "1:10,16:11"), ["suffix", "eagle"])
    assert first.tokens == recording.answers[0].n_answer and second.speedup > 1.5

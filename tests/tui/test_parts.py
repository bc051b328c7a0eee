"""Parts without a screen: lens, pace, keys, wording, settings in force."""

from __future__ import annotations

from pathlib import Path

import pytest

from lcspec.answers.text import Piece
from lcspec.config import DraftFiles
from lcspec.errors import LcspecError
from lcspec.tui import keys
from lcspec.tui.choices import Choices
from lcspec.tui.lens import MARKS, TINTS, legend, merged, style_of, tinted
from lcspec.tui.markdown import code_blocks
from lcspec.tui.pace import LONGEST, SHARE, TICK, Pacer
from lcspec.tui.screens.chat import ChatScreen
from lcspec.tui.screens.drafters import offered
from lcspec.tui.settings import SettingsFile
from lcspec.tui.start import dark_terminal, overrides
from lcspec.tui.store import Message
from lcspec.tui.widgets.message import MessageView
from lcspec.tui.wording import gauge, name_of, outcome, seconds, sentence, size

pytestmark = pytest.mark.tui

PIECES = [Piece("The", None), Piece(" c", "ngram"), Piece("at", "ngram"), Piece(" sat", "model"), Piece("", "model")]


def test_the_lens_tints_what_was_drafted_and_nothing_else() -> None:
    content = tinted(PIECES)
    assert content.plain == "The cat sat"
    spans = {(s.start, s.end): str(s.style) for s in content.spans}
    assert spans == {(3, 7): TINTS["ngram"], (7, 11): TINTS["model"]}
    assert merged(PIECES) == [Piece("The", None), Piece(" cat", "ngram"), Piece(" sat", "model")]


def test_without_colours_the_lens_uses_text_styles() -> None:
    styles = [str(s.style) for s in tinted(PIECES, colour=False).spans]
    assert styles == [MARKS["ngram"], MARKS["model"]]
    assert not any("$" in style or "#" in style for style in MARKS.values())
    assert len(set(MARKS.values())) == len(MARKS)


def test_text_in_brackets_is_no_markup() -> None:
    assert tinted([Piece("[red]a[/red]", None), Piece("[b]", "model")]).plain == "[red]a[/red][b]"
    assert legend(["model"]).plain.startswith(" model ")


def test_an_unknown_drafter_keeps_one_tint() -> None:
    assert style_of("eagle") == style_of("eagle") in TINTS.values()


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.worked = 0.0

    def pass_(self, seconds: float, work: float = 0.0) -> None:
        self.now += seconds
        self.worked += work


def paced(clock: Clock, cost: float, ticks: int) -> tuple[int, float]:
    """Updates in `ticks` ticks, each costing `cost`; the last interval."""
    pacer = Pacer(lambda: clock.now, lambda: clock.worked)
    pacer.start()
    updates = 0
    for _ in range(ticks):
        clock.pass_(TICK)
        if pacer.due():
            updates += 1
            clock.pass_(0.0, cost)
    return updates, pacer.interval


def test_cheap_updates_come_with_every_tick() -> None:
    updates, interval = paced(Clock(), 0.0001, 50)
    assert updates == 50 and interval == TICK


def test_dear_updates_are_spaced_so_that_they_take_a_small_share() -> None:
    clock = Clock()
    updates, interval = paced(clock, 0.006, 500)
    assert interval == pytest.approx(0.006 / SHARE, rel=0.05)
    assert clock.worked / clock.now < SHARE * 1.2
    assert updates > 20


def test_even_a_very_dear_update_comes_a_few_times_a_second() -> None:
    _, interval = paced(Clock(), 0.5, 200)
    assert interval == LONGEST


def test_every_action_exists_and_has_a_key_of_its_own() -> None:
    for action in keys.CHAT:
        assert hasattr(ChatScreen, f"action_{action.name}") or action.name in keys.ELSEWHERE, action
        assert action.help.endswith(".")
    for action in keys.MESSAGE:
        assert hasattr(MessageView, f"action_{action.name}"), action
    for table in (keys.CHAT, keys.MESSAGE):
        used = [key for action in table for key in action.keys.split(",")]
        assert len(used) == len(set(used))
    assert keys.shown_keys(next(a for a in keys.CHAT if a.name == "lens")) == "F2, Ctrl+L"


def test_code_blocks_are_found_and_html_is_text() -> None:
    text = "a\n```python\nprint(1)\n```\nb\n\n    indented\n\n<div>kept</div>\n"
    assert code_blocks(text) == ["print(1)\n", "indented\n"]


def test_outcomes_say_why_an_answer_ended() -> None:
    answer = Message("1", "c", None, "assistant", stop_reason="cancelled", tokens=5, seed=3, state="stopped")
    assert outcome(answer) == "stopped by you · 5 tokens · seed 3"
    stats = {"tokens_per_second": 12.345, "mean_acceptance_length": 2.0}
    empty = Message("1", "c", None, "assistant", state="done", stop_reason="stop", tokens=0, seed=7)
    assert outcome(empty) == "finished · an empty answer · seed 7"
    assert "12.3 tokens/s · 2.00 tokens a step" in outcome(Message("1", "c", None, "assistant", stats=stats))
    assert "interrupted" in outcome(Message("1", "c", None, "assistant", stop_reason="interrupted"))


def test_sizes_times_and_gauges() -> None:
    assert [size(n) for n in (12, 1234, 56_000, 7_400_000, 2_100_000_000)] == [
        "12 B",
        "1.2 kB",
        "56 kB",
        "7.4 MB",
        "2.1 GB",
    ]
    assert sentence("temperature must be 0 or more") == "Temperature must be 0 or more"
    assert sentence("notes.txt is empty") == "notes.txt is empty" and sentence("") == ""
    assert name_of(Path("/m/SmolLM2.Q4_1.gguf"), "Smollm2 Mix1 Ep2") == "SmolLM2.Q4_1"
    assert name_of(Path("/blobs/sha256-0a1b"), "Llama 3.2 1B") == "Llama 3.2 1B"
    assert name_of(Path("/blobs/sha256-0a1b"), None) == "sha256-0a1b"
    assert (seconds(1.25), seconds(-0.034)) == ("+1.2 s", "-34 ms")
    assert (gauge(0), gauge(0.5), gauge(3.0)) == ("░" * 8, "████░░░░", "█" * 8)


def test_drafters_offered() -> None:
    names = ["forced", "model", "ngram", "prediction", "suffix"]
    assert offered(names, DraftFiles((Path("a.gguf"),))) == [
        "auto",
        "off",
        "model",
        "ngram",
        "suffix",
        "ngram,suffix,model",
    ]
    assert offered(names, DraftFiles()) == ["auto", "off", "ngram", "suffix", "ngram,suffix"]


def test_the_command_line_holds_for_this_run_only(tmp_path: Path) -> None:
    path = tmp_path / "chat.toml"
    path.write_text("[sampling]\ntemperature = 0.5\ntop_k = 10\n", encoding="utf-8")
    choices = Choices(SettingsFile(path), overrides({"speculate": "ngram", "temperature": 0.1, "model": Path("x")}))
    assert choices.now.sampling.temperature == 0.1 and choices.now.sampling.top_k == 10
    assert choices.now.speculation.drafters == "ngram"
    choices.save({"top_k": 20})
    assert choices.now.sampling.top_k == 20
    again = SettingsFile(path).settings
    assert (again.sampling.temperature, again.sampling.top_k) == (0.5, 20)
    assert again.speculation.drafters == "auto"


def test_what_is_saved_is_in_force_even_over_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "chat.toml"
    path.write_text('preset = "cold"\n[presets.cold]\ntemperature = 0.2\n', encoding="utf-8")
    choices = Choices(SettingsFile(path))
    assert choices.now.sampling.temperature == 0.2
    choices.save({"temperature": 0.9})
    assert choices.now.sampling.temperature == 0.9
    choices.save({"preset": None})
    assert choices.now.sampling.temperature == 0.9


def test_bad_values_change_nothing(tmp_path: Path) -> None:
    choices = Choices(SettingsFile(tmp_path / "chat.toml"))
    with pytest.raises(LcspecError):
        choices.hold(temperature=-1.0)
    assert choices.now.sampling.temperature == 0.8
    with pytest.raises(LcspecError):
        Choices(SettingsFile(tmp_path / "chat.toml"), {"top_p": 2.0})


@pytest.mark.parametrize(("value", "dark"), [("15;0", True), ("0;15", False), ("0;default;7", False), ("", True)])
def test_light_terminals_say_so(monkeypatch: pytest.MonkeyPatch, value: str, dark: bool) -> None:
    monkeypatch.setenv("COLORFGBG", value)
    assert dark_terminal() is dark

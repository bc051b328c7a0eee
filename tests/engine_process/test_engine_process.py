"""An engine in a process of its own: the same texts, and what becomes of them when the process dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lcspec.config import ModelOptions
from lcspec.engine.events import Event, Failed, Finished, Prefill, Started, Step, StepStats, Tokens
from lcspec.engine.request import Request
from lcspec.engine_host import embed, totals
from lcspec.engine_process import parent, spawn
from lcspec.engine_process.parent import EngineProcess
from lcspec.engine_process.process import Child, ended
from lcspec.engine_process.vocabulary import RemoteVocab, Tables
from lcspec.engine_thread import EngineThread
from lcspec.errors import (
    ContextOverflow,
    EngineDied,
    GrammarError,
    LcspecError,
    ModelFileError,
    ModelLoadError,
    TokenizeError,
    UsageError,
)
from lcspec.llama import Model
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import parse_speculation
from tests import engine_faults, tiny_gguf
from tests.running import until

pytestmark = [pytest.mark.model, pytest.mark.slow]

WAIT = 120.0
PROMPT = (5, 6, 7, 8)
NGRAM = parse_speculation("ngram:min_n=1")
SEEDED = SamplingParams(temperature=0.8, seed=7, repeat_penalty=1.3)


class Sink:
    """Collects events; `at` is called once when so many tokens have come."""

    def __init__(self, tokens: int = 0, at: Callable[[], None] | None = None) -> None:
        self.events: list[Event] = []
        self.done: Future[Event] = Future()
        self.first: Future[None] = Future()
        self._tokens, self._at = tokens, at

    def __call__(self, events: Sequence[Event]) -> None:
        self.events += events
        if self.ids and not self.first.done():
            self.first.set_result(None)
        if self._at is not None and len(self.ids) >= self._tokens:
            at, self._at = self._at, None
            at()
        if isinstance(events[-1], (Finished, Failed)):
            self.done.set_result(events[-1])

    def last(self) -> Any:
        return self.done.result(WAIT)

    @property
    def ids(self) -> list[int]:
        return [info.id for e in self.events if isinstance(e, Tokens) for info in e.tokens]

    @property
    def text(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, Tokens))


def options(path: Path, **given: Any) -> ModelOptions:
    return ModelOptions(path, **{"ctx": 512, "slots": 2, "threads": 1, **given})


def request(n: int = 60, sampling: SamplingParams = SEEDED, prompt: tuple[int, ...] = PROMPT, **given: Any) -> Request:
    return Request(prompt, sampling, max_tokens=n, ignore_end=True, **given)


def kill(engine: EngineProcess) -> None:
    pid = engine.life.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


@pytest.fixture()
def engine(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineProcess]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    found = EngineProcess(options(path), prelude=engine_faults.unhurried)
    try:
        found.loaded()
        yield found
    finally:
        assert found.close(timeout=WAIT)


def test_a_process_gives_what_a_thread_gives(path: Path, engine: EngineProcess) -> None:
    here = EngineThread(options(path))
    try:
        model, other = here.loaded(), engine.loaded()
        assert other.facts == model.facts and other.header == model.header
        for vocab in (model.vocab, other.vocab):
            assert vocab.tokenize("Hello you") == model.vocab.tokenize("Hello you")
        for worker in (here, engine):
            sink = Sink()
            worker.submit(request(sampling=SamplingParams(seed=3)), sink).result(WAIT)
            assert sink.last().completion_tokens == 60 and isinstance(sink.events[0], Started)
            if worker is here:
                text = sink.text
        assert sink.text == text
        rows = [worker.in_pieces(partial(embed, [PROMPT, PROMPT[:2]])).result(WAIT) for worker in (here, engine)]
        assert rows[0].tolist() == rows[1].tolist()
        assert engine.call(totals).result(WAIT).done == {"length": 1}
        assert os.getpid() != engine.life.pid
    finally:
        assert here.close(timeout=WAIT)


@pytest.mark.parametrize("kind", [EngineThread, EngineProcess])
def test_an_interface_is_told_about_steps(kind: Any, path: Path) -> None:
    """The prompt's progress, who drafts, what plain decoding would take, and drafters that change midway."""
    shares: list[float] = []
    worker = kind(options(path), progress=lambda what, share: shares.append(share))
    try:
        worker.loaded()
        loading = len(shares)
        found = worker.prepare(parse_speculation("auto")).result(WAIT)
        assert found.speculation.auto and found.curve is not None and 1 in found.curve.points and len(shares) > loading
        switched: list[Any] = []
        sent: Future[Any] = Future()
        sink = Sink(20, lambda: switched.append(sent.result(WAIT).result(WAIT).switch(NGRAM)))
        sent.set_result(worker.submit(request(200), sink, details=True))
        assert sink.last().completion_tokens == 200 and switched[0].result(WAIT) is None
        steps = [event for event in sink.events if isinstance(event, Step)]
        assert any(isinstance(event, Prefill) for event in sink.events)
        assert sum(len(step.stats.emitted) for step in steps) == 199  # the first comes from the prompt
        assert all(step.plain_seconds and step.expected_seconds for step in steps)
        first, last = steps[0], steps[-1]
        assert first.plain and "ngram" not in first.names and "ngram" in last.names
        assert any(step.drafters_of(1) == ["ngram"] for step in steps if not step.plain)
        plain = Sink()
        worker.submit(request(200), plain).result(WAIT)
        assert plain.last().completion_tokens == 200 and plain.ids == sink.ids
        assert not any(isinstance(e, (Prefill, Step, StepStats)) for e in plain.events)
        with pytest.raises(UsageError, match="nobody"):
            worker.prepare(parse_speculation("nobody")).result(WAIT)
    finally:
        assert worker.close(timeout=WAIT)


def test_drafters_stay_switched_in_the_next_process(engine: EngineProcess) -> None:
    sent: Future[Any] = Future()

    def switch_and_kill() -> None:
        sent.result(WAIT).result(WAIT).switch(NGRAM).add_done_callback(lambda _: kill(engine))

    whole, killed = Sink(), Sink(20, switch_and_kill)
    engine.submit(request(200), whole).result(WAIT)
    whole.last()
    sent.set_result(engine.submit(request(200), killed, details=True))
    assert isinstance(killed.last(), Finished) and killed.ids == whole.ids and engine.life.restarts == 1
    last = [event for event in killed.events if isinstance(event, Step)][-1]
    assert last.names == ("ngram",)


def test_one_started_early_is_taken_and_shows_nothing(path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    spawn.start_early()
    [early] = spawn._early
    engine = EngineProcess(options(path), quiet=True)
    try:
        engine.loaded()
        assert engine.life.pid == early.process.pid and not spawn._early
        engine.call(engine_faults.give_up_as_the_library_does)
        sink = Sink()
        engine.submit(request(5), sink).result(WAIT)
        assert sink.last().completion_tokens == 5
        assert engine.life.last == "the engine's process was ended by SIGABRT (llama.cpp gave up at some.cpp:7)"
    finally:
        assert engine.close(timeout=WAIT)
    assert capfd.readouterr() == ("", "")


def test_what_is_wrong_is_said_as_by_a_thread(path: Path, tmp_path: Path, engine: EngineProcess) -> None:
    with pytest.raises(ContextOverflow, match="513 tokens"):
        engine.submit(request(prompt=(5,) * 513), Sink()).result(WAIT)
    with pytest.raises(GrammarError, match="missing"):
        engine.compile("root ::= missing")
    with pytest.raises(TokenizeError, match="half a character"):
        engine.loaded().vocab.tokenize("\ud800")
    (tmp_path / "none.gguf").write_bytes(b"no model")
    for wrong in (tmp_path / "none.gguf", tmp_path / "nothing.gguf"):
        texts = []
        for kind in (EngineThread, EngineProcess):
            worker = kind(options(wrong))
            with pytest.raises(ModelFileError) as caught:
                worker.loaded()
            texts.append(str(caught.value))
            assert worker.close(timeout=WAIT)
        assert texts[0] == texts[1]


def test_a_grammar_is_followed_there(engine: EngineProcess) -> None:
    sink = Sink()
    grammar = engine.compile('root ::= "a" "b"{3}')
    engine.submit(Request(PROMPT, SamplingParams(grammar=grammar, seed=1)), sink).result(WAIT)
    assert sink.last().reason == "stop" and sink.text == "abbb"


@pytest.mark.parametrize("more", [{}, {"stop": ("\u00e9", "zzzzzz")}])
def test_a_killed_process_goes_on_with_the_same_text(engine: EngineProcess, more: dict[str, Any]) -> None:
    whole, killed, waiting = Sink(), Sink(20, lambda: kill(engine)), [Sink(), Sink()]
    engine.submit(request(200, **more), whole).result(WAIT)
    whole.last()
    engine.submit(request(200, **more), killed).result(WAIT)
    for sink in waiting:
        engine.submit(request(30), sink).result(WAIT)
    assert isinstance(killed.last(), Finished)
    assert killed.ids == whole.ids and killed.text == whole.text
    assert killed.last().completion_tokens == whole.last().completion_tokens == len(killed.ids)
    assert killed.last().prompt_tokens == len(PROMPT)
    assert sum(isinstance(e, Started) for e in killed.events) == 1
    assert all(sink.last().completion_tokens == 30 for sink in waiting)
    life = engine.life
    assert life.away is None and life.restarts == 1 and life.resumed >= 1 and life.refused == 0


def test_a_new_process_has_the_kernels_of_the_first(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disturbed measurement is not stored, and the next one may say something else."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    engine = EngineProcess(options(path), prelude=partial(engine_faults.measures_otherwise, tmp_path))
    try:
        if not engine.loaded().facts.exact:
            pytest.skip("this machine's kernels give a row other bits at other widths")
        whole, killed = Sink(), Sink(20, lambda: kill(engine))
        for sink in (whole, killed):
            engine.submit(request(60, logprobs=0), sink).result(WAIT)
            assert isinstance(sink.last(), Finished)
        assert engine.life.restarts == 1 and engine.error is None
        assert killed.ids == whole.ids
    finally:
        assert engine.close(timeout=WAIT)


def test_a_seed_that_was_drawn_is_kept(engine: EngineProcess) -> None:
    killed, again = Sink(20, lambda: kill(engine)), Sink()
    free = SamplingParams(temperature=1.0)
    engine.submit(request(100, free), killed).result(WAIT)
    seed = killed.last().seed
    engine.submit(request(100, SamplingParams(temperature=1.0, seed=seed)), again).result(WAIT)
    again.last()
    assert again.ids == killed.ids


def test_what_ends_it_twice_is_refused_and_the_others_are_not(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    engine = EngineProcess(options(path, slots=1), prelude=engine_faults.abort_on_poison)
    try:
        engine.loaded()
        poison, other = Sink(), Sink()
        first = engine.submit(request(10, prompt=(5, *engine_faults.POISON)), poison)
        engine.submit(request(10), other).result(WAIT)
        try:
            first.result(WAIT)
            error: BaseException = poison.last().error
        except EngineDied as refused:
            error = refused
        assert isinstance(error, EngineDied) and "SIGABRT" in str(error)
        assert other.last().completion_tokens == 10
        # A third death tells them apart if the other one was just being queued in both processes.
        assert engine.life.restarts in (2, 3) and engine.life.refused == 1
    finally:
        assert engine.close(timeout=WAIT)


def test_neighbours_of_what_ends_it_are_not_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them were running in both processes that died; one at a time then shows which one it was."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    engine = EngineProcess(options(path, slots=3), prelude=engine_faults.abort_on_late_poison)
    try:
        engine.loaded()
        sinks = [Sink() for _ in range(4)]
        prompts: list[tuple[int, ...]] = [(5, 6, 7), (5, *engine_faults.POISON), (8, 9), (9, 5)]
        asked = [engine.submit(request(40, prompt=p), sink) for p, sink in zip(prompts, sinks)]
        for answer in asked:
            answer.result(WAIT)
        error = sinks[1].last().error
        assert isinstance(error, EngineDied) and "SIGABRT" in str(error)
        assert [sinks[i].last().completion_tokens for i in (0, 2, 3)] == [40, 40, 40]
        assert engine.life.restarts == 3 and engine.life.refused == 1
        again = Sink()
        engine.submit(request(40, prompt=prompts[0]), again).result(WAIT)
        again.last()
        assert again.ids == sinks[0].ids
    finally:
        assert engine.close(timeout=WAIT)


def test_a_process_that_dies_while_it_loads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    engine = EngineProcess(options(path), prelude=engine_faults.abort_while_loading)
    with pytest.raises(ModelLoadError, match="SIGABRT"):
        engine.loaded()
    assert engine.close(timeout=WAIT) and not engine.alive
    with pytest.raises(LcspecError):
        engine.submit(request(), Sink()).result(WAIT)


def test_a_model_that_is_gone_is_told_until_it_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "WAIT", 0.05)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    path = tmp_path / "model.gguf"
    tiny_gguf.write_llama(path)
    engine = EngineProcess(options(path), prelude=engine_faults.unhurried)
    try:
        engine.loaded()
        path.rename(tmp_path / "away.gguf")
        sink = Sink(20, lambda: kill(engine))
        engine.submit(request(400), sink).result(WAIT)
        assert isinstance(sink.last(), Failed) and "try again later" in str(sink.last().error)
        with pytest.raises(LcspecError, match="try again later"):
            engine.submit(request(), Sink()).result(WAIT)
        assert "model.gguf" in str(engine.life.away) and engine.alive
        (tmp_path / "away.gguf").rename(path)
        until(lambda: engine.life.away is None, patience=WAIT)
        again = Sink()
        engine.submit(request(), again).result(WAIT)
        assert isinstance(again.last(), Finished)
    finally:
        assert engine.close(timeout=WAIT)


def test_cancelling(engine: EngineProcess) -> None:
    sink = Sink()
    ticket = engine.submit(request(400), sink).result(WAIT)
    sink.first.result(WAIT)
    ticket.cancel()
    assert sink.last().reason == "cancelled"
    # ... and while there is no process.
    away = Sink()
    ticket = engine.submit(request(400), away).result(WAIT)
    away.first.result(WAIT)
    kill(engine)
    ticket.cancel()
    assert away.last().reason == "cancelled"
    work = engine.in_pieces(partial(embed, [PROMPT] * 400))
    assert work.cancel()
    with pytest.raises(CancelledError):
        work.result(WAIT)
    after = Sink()
    engine.submit(request(), after).result(WAIT)
    assert isinstance(after.last(), Finished)


@pytest.mark.parametrize("drain", [True, False])
def test_closing(engine: EngineProcess, drain: bool) -> None:
    sink = Sink()
    engine.submit(request(400), sink).result(WAIT)
    sink.first.result(WAIT)
    assert engine.close(drain=drain, timeout=WAIT)
    assert sink.last().reason == ("length" if drain else "cancelled")
    assert not engine.alive and engine.life.pid is None and engine.life.restarts == 0


def test_one_that_is_stopped_is_killed_when_it_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "END_SECONDS", 2.0)
    engine = EngineProcess(options(path))
    engine.loaded()
    pid = engine.life.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    engine.submit(request(prompt=(5,) * 500), Sink())  # nothing waits for a process that does not read
    assert engine.close(timeout=0.5)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


PROGRAM = """
import sys, time
from pathlib import Path
from lcspec.config import ModelOptions
from lcspec.engine_process.parent import EngineProcess
engine = EngineProcess(ModelOptions(Path(sys.argv[1]), ctx=128, threads=1))
engine.loaded()
print(engine.life.pid, "llama_cpp" in sys.modules, flush=True)
time.sleep(600)
"""


def test_it_ends_with_its_program_which_needs_no_library(path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pid, library = program.stdout.readline().split()
        assert library == "False"
        os.kill(int(pid), signal.SIGINT)  # the program's to act on
        os.kill(int(pid), signal.SIGTERM)
        program.kill()
    until(lambda: not Path(f"/proc/{pid}/exe").exists(), patience=WAIT)


def test_the_tables_of_a_vocabulary(tmp_path: Path, path: Path) -> None:
    with Model.load(ModelOptions(path)) as model:
        vocab = model.vocab
        tables = RemoteVocab(Tables.of(vocab), lambda *_: [])
        for token in range(vocab.n_tokens):
            for special in (False, True):
                assert tables.piece(token, special=special) == vocab.piece(token, special=special)
        assert (tables.n_tokens, tables.bos, tables.eos) == (vocab.n_tokens, vocab.bos, vocab.eos)
        assert tables.no_end == vocab.no_end and tables.fill_in_middle == vocab.fill_in_middle
        assert tables.text([5, 6, 7]) == vocab.text([5, 6, 7])
        for wrong in (-1, vocab.n_tokens):
            with pytest.raises(IndexError):
                tables.piece(wrong)


def test_how_a_process_ended_is_said() -> None:
    assert ended(3) == "ended with code 3"
    assert ended(-signal.SIGKILL).startswith("was ended by SIGKILL (by hand")
    assert ended(-250) == "was ended by signal 250"


def test_an_answer_that_comes_at_once_is_not_lost(engine: EngineProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    send = Child.send

    def slow(self: Child, message: Any) -> None:
        send(self, message)
        time.sleep(0.3)  # the thread that has sent it does not come to run, and the process answers

    monkeypatch.setattr(Child, "send", slow)
    sink = Sink()
    engine.submit(request(3), sink).result(WAIT)
    assert isinstance(sink.last(), Finished) and len(sink.ids) == 3

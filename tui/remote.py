"""A server as the interface sees it: the same events as from an engine here (see `lcspec.tui.source`)."""

from __future__ import annotations

import asyncio
import collections
import secrets
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Mapping, Sequence

from lcspec.answers.stored import CLOSING, OPENING
from lcspec.answers.text import Piece
from lcspec.config import DraftFiles, SpeculationParams
from lcspec.engine.events import Failed, Finished, RequestStats, Started, TokenInfo, Tokens
from lcspec.errors import LcspecError
from lcspec.sampling.parameters import MADE, SamplingParams
from lcspec.tui.conversation import Prompt, answer_text
from lcspec.tui.server_client import ServerClient, ServerError, ServerModel
from lcspec.tui.source import UNKNOWN, Asked, Item, Loaded, Progress, Question, Running

SEED_BITS = 31  # some servers read 32 bits with a sign
# Of the sampling: what every server reads. Others are sent where they are not as usual.
EVERYWHERE = ("temperature", "top_p")
# What asks for an answer without reasoning: llama-server, vLLM and lcspec read the one, Ollama and OpenAI the other.
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "none"}
NOTE = "A server answers: it decides about drafting. Lens and inspector need a model on this machine (F5)."
# Names that a delta has for the model's thinking.
REASONING = ("reasoning_content", "reasoning")


class ServerAnswer:
    """One request to a server. Everything happens on the event loop of the interface."""

    counts = False

    def __init__(self, client: ServerClient, body: Mapping[str, Any], seed: int) -> None:
        """Begin."""
        self.done = False
        self.accepted = False
        self._queue: collections.deque[Item] = collections.deque([Started(0, 0, 0, seed)])
        self._client = client
        self._seed = seed
        self._max_tokens = body.get("max_tokens")
        self._thinking = False
        self._chunks = 0
        self._reason: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}
        self._first_at = self._last_at = 0.0
        self._ended = False
        self._task = asyncio.get_running_loop().create_task(self._follow(body))

    def drain(self) -> list[Item]:
        """Everything that came since the last time."""
        out = list(self._queue)
        self._queue.clear()
        if out and isinstance(out[-1], (Finished, Failed)):
            self.done = True
        return out

    def cancel(self) -> None:
        """Close the connection, which stops the server."""
        if not self._ended:
            self._finish("cancelled")
            self._task.cancel()

    async def _follow(self, body: Mapping[str, Any]) -> None:
        try:
            async for chunk in self._client.stream(body):
                self.accepted = True
                self._take(chunk)
        except LcspecError as error:
            self._end(Failed(0, error))
        except Exception as error:  # whatever a server sends, the answer ends with words
            self._end(Failed(0, ServerError(f"the server's answer cannot be read: {error!r}")))
        else:
            self._finish(self._reason or "stop")

    def _take(self, chunk: Mapping[str, Any]) -> None:
        self._usage = chunk.get("usage") or self._usage
        self._timings = chunk.get("timings") or self._timings
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            thought = next((delta[name] for name in REASONING if isinstance(delta.get(name), str)), "")
            self._say(thought, thinking=True)
            content = delta.get("content")
            self._say(content if isinstance(content, str) else "", thinking=False)
            self._reason = choice.get("finish_reason") or self._reason

    def _say(self, text: str, thinking: bool) -> None:
        if not text or self._ended:
            return
        self._last_at = time.monotonic()
        self._first_at = self._first_at or self._last_at
        self._chunks += 1
        self._queue.append(Tokens(0, (TokenInfo(0),), (*self._tags(thinking), Piece(text, None))))

    def _tags(self, thinking: bool) -> list[Piece]:
        """What stands between reasoning and answer where they are kept as one text."""
        if thinking == self._thinking:
            return []
        self._thinking = thinking
        return [Piece(OPENING if thinking else CLOSING, None)]

    def _finish(self, reason: str) -> None:
        n = int(self._usage.get("completion_tokens") or self._chunks)
        if self._thinking and reason == "stop":
            self._queue.append(Tokens(0, (), tuple(self._tags(False))))
        if reason == "length" and (self._max_tokens is None or n < self._max_tokens):
            reason = "context"
        known = ("length", "context", "cancelled")
        stats = _stats(self._timings, n, self._last_at - self._first_at)
        seed = int(self._timings.get("seed") or self._seed)
        prompt = int(self._usage.get("prompt_tokens") or 0)
        self._end(Finished(0, reason if reason in known else "stop", None, prompt, n, seed, stats))

    def _end(self, last: Finished | Failed) -> None:
        if not self._ended:
            self._ended = True
            self._queue.append(last)


class ServerSource:
    """A server: a `Source`."""

    local = False
    alive = True

    def __init__(self, url: str, key: str | None = None, model: str | None = None) -> None:
        """Nothing is asked yet. `model`: which of the server's (None: its first).

        Raises:
            ServerError: the address is none.
        """
        self.client = ServerClient(url, key)
        self.wanted = model
        self.progress = Progress()
        self.models: list[ServerModel] = []

    @property
    def title(self) -> str:
        """Its address."""
        return self.client.base

    @property
    def tokenizer(self) -> ServerClient:
        """Counts at the server."""
        return self.client

    def tokenize(self, text: str) -> Sequence[int]:
        """As many ids as the text has tokens."""
        return self.client.tokenize(text)

    def piece(self, token: int) -> str:
        """Nobody knows."""
        return ""

    async def ready(self) -> None:
        """Ask for the server's models.

        Raises:
            LcspecError: it is away, refuses the key, or has no such model.
        """
        self.models = await asyncio.to_thread(self.client.models)
        if not self.models:
            raise ServerError(f"the server at {self.client.place} has no model: load one there")
        self._model()
        await asyncio.to_thread(self.client.look_for_counting)

    def _model(self) -> ServerModel:
        if self.wanted is None:
            return self.models[0]
        for model in self.models:
            if self.wanted in (model.name, *model.aliases):
                return replace(model, name=self.wanted)
        names = ", ".join(m.name for m in self.models)
        raise ServerError(f"the server at {self.client.place} has no model {self.wanted}: it has {names}")

    async def prepare(self, speculation: SpeculationParams) -> Loaded:
        """What is known of the model; drafting is the server's."""
        model = self._model()
        self.client.model = model.name
        notes = [NOTE]
        if len(self.models) > 1:
            notes.append("It has " + ", ".join(m.name for m in self.models) + "; /model NAME chooses another.")
        return Loaded(
            path=Path(model.name),
            files=DraftFiles(),
            name=model.name,
            quantization="",
            n_ctx=model.n_ctx or UNKNOWN,
            threads=0,
            spare=True,
            notes=tuple(notes),
            server=self.client.place,
        )

    async def ask(self, question: Question) -> Asked:
        """Begin an answer; what the server refuses comes out of `drain`.

        Raises:
            ServerError: the answer cannot be continued by a server.
        """
        prompt, sampling = question.prompt, question.sampling
        seed = sampling.seed if sampling.seed is not None else secrets.randbits(SEED_BITS)
        body = request_body(self.client.model, prompt, sampling, seed, question.max_tokens)
        if question.before is not None:
            text = answer_text(question.before.text)
            if not text.strip():
                raise ServerError(
                    "this answer was cut while the model was thinking, which a server cannot continue: Ctrl+R answers "
                    "again"
                )
            body["messages"].append({"role": "assistant", "content": text})
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return Asked(ServerAnswer(self.client, body, seed), prompt)

    async def switch(self, running: Running, speculation: SpeculationParams) -> None:
        """Refused.

        Raises:
            ServerError: always.
        """
        raise ServerError("the server decides about drafting")

    def interruption(self) -> None:
        """A server that is gone is an error of the answer."""

    def give_up(self) -> None:
        """Nothing is loaded here."""

    def close(self, timeout: float = 10.0) -> bool:
        """No more questions."""
        self.client.close()
        return True


def request_body(
    model: str, prompt: Prompt, sampling: SamplingParams, seed: int, max_tokens: int | None
) -> dict[str, Any]:
    """The body of a request: what every server reads, and of the rest of the sampling what is not as usual, since
    there are servers that refuse what they do not know."""
    usual = SamplingParams()
    names = [f.name for f in fields(SamplingParams) if f.name not in (*MADE, "seed")]
    chosen = {n: getattr(sampling, n) for n in names if n in EVERYWHERE or getattr(sampling, n) != getattr(usual, n)}
    return {
        "model": model,
        "messages": list(prompt.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": seed,
        **chosen,
        **({"max_tokens": max_tokens} if max_tokens is not None else {}),
        **({} if prompt.think else NO_THINKING),
    }


def _stats(timings: Mapping[str, Any], n: int, seconds: float) -> RequestStats:
    """What the server says about its time, else what was seen of it here."""
    steps = int(timings.get("target_steps") or 0)
    length = float(timings.get("mean_acceptance_length") or 0.0)
    rate = float(timings.get("predicted_per_second") or 0.0)
    tokens = round(steps * length) if steps else n
    return RequestStats(
        target_steps=steps,
        drafted=int(timings.get("draft_n") or 0),
        accepted=int(timings.get("draft_n_accepted") or 0),
        by_drafter={k: dict(v) for k, v in (timings.get("by_drafter") or {}).items()},
        step_tokens=tokens,
        prefill_seconds=float(timings.get("prompt_ms") or 0.0) / 1e3,
        decode_seconds=tokens / rate if rate > 0 else seconds,
    )

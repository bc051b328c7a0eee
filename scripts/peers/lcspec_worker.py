"""lcspec as one of the programs compared: a process that loads a model once and answers JSON lines.

Started by compare_peers.py; one request object a line on standard input, one reply a line on standard output. The
engine forgets all texts before every completion, so that nothing carries over from one run of a prompt to the next
(earlier answers would make a repetition of it look far too good). What stays is what lcspec keeps between two calls
anyway: the cost curve and the acceptance rates of drafters.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lcspec.config import DraftFiles, ModelOptions
from lcspec.drafters import DrafterEnv
from lcspec.engine.engine import Engine
from lcspec.engine.events import Finished, StepStats, Tokens
from lcspec.engine.request import Request
from lcspec.errors import LcspecError
from lcspec.llama import Model
from lcspec.llama.template import ChatTemplate
from lcspec.llama.threads import default_threads
from lcspec.sampling.parameters import SamplingParams
from lcspec.session import make_engine, parse_speculation

# Tokens of a request beyond those asked for, so that nothing in its last steps is cut.
OVERSHOOT = 64


class Worker:
    """One target model, and requests on it."""

    def __init__(self, target: str, draft: str | None, threads: int, gpu_layers: int | None) -> None:
        self.threads = threads or default_threads()
        self.draft = Path(draft) if draft else None
        self.gpu_layers = gpu_layers
        self.model = Model.load(ModelOptions(Path(target), threads=self.threads, gpu_layers=gpu_layers))
        self.ctx = 0
        self.engine: Engine | None = None
        self.banned: set[tuple[int, ...]] = set()

    def op_describe(self) -> dict[str, Any]:
        """What is loaded."""
        traits = self.model.traits
        return {
            "threads": self.threads,
            "ctx_train": traits.n_ctx_train,
            "description": traits.description,
            "size_bytes": traits.size_bytes,
            "n_params": traits.n_params,
        }

    def op_prepare(self, texts: list[str], chat: bool) -> list[dict[str, Any]]:
        """The prompt text every program is given for each of `texts`, and its length in tokens.

        A prompt that cannot be used has an `error` instead.
        """
        template = ChatTemplate(self.model) if chat else None
        out: list[dict[str, Any]] = []
        for text in texts:
            try:
                if template is not None:
                    text = template.render([{"role": "user", "content": text}])
                    if template.has_bos(text):  # every program adds it again
                        text = text[len(template.tokens["bos_token"]) :]
                out.append({"text": text, "tokens": len(self.model.vocab.tokenize(text))})
            except LcspecError as error:
                out.append({"error": str(error)})
        return out

    def op_open(self, ctx: int) -> dict[str, Any]:
        """Positions of the contexts to come."""
        if ctx != self.ctx and self.engine is not None:
            self.engine.close()
            self.engine = None
        self.ctx = ctx
        return {}

    def op_run(self, strategy: str, max_draft: int | None, prompt: str | None, n: int) -> dict[str, Any]:
        """Complete `prompt` (None: a single token, as llama-bench does) with `n` tokens from decode steps."""
        vocab = self.model.vocab
        ids = tuple(vocab.tokenize(prompt)) if prompt is not None else (max(0, vocab.bos),)
        while True:
            bias = vocab.no_end if ids in self.banned else ()
            request = Request(
                ids,
                SamplingParams(temperature=0.0, logit_bias=bias),
                parse_speculation(strategy, self.draft, max_draft=max_draft),
                max_tokens=n + 1 + OVERSHOOT,  # the first comes from the prompt's last row
                ignore_end=True,
            )
            finished, tokens, text = self._complete(request, n + 1)
            if bias or not any(vocab.is_end(t) for t in tokens):
                break
            # The other programs ban end tokens instead of running past them: do the same where it makes a difference.
            self.banned.add(ids)
        stats = finished.stats
        return {
            "rate": stats.tokens_per_second,
            "tokens": stats.step_tokens,
            "seconds": stats.decode_seconds,
            "reported": stats.tokens_per_second,
            "n_prompt": finished.prompt_tokens,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "text": text,
        }

    def _complete(self, request: Request, enough: int) -> tuple[Finished, list[int], str]:
        """Run a request to the end of the step that gave it `enough` tokens, all of which count: so do the others."""
        engine = self._forgetful_engine()
        tokens: list[int] = []
        text = ""
        for event in engine.run(request):
            if isinstance(event, Tokens):
                tokens += [info.id for info in event.tokens]
                text += event.text
            if isinstance(event, StepStats) and len(tokens) >= enough:
                engine.cancel(event.request)
            if isinstance(event, Finished):
                return event, tokens, text
        raise LcspecError("the engine stopped without finishing the request")

    def _forgetful_engine(self) -> Engine:
        """The engine, which knows no text any more: neither drafters nor caches do."""
        if self.engine is None:
            where: dict[str, Any] = {"threads": self.threads, "gpu_layers": self.gpu_layers}
            options = ModelOptions(self.model.options.path, ctx=self.ctx, **where)
            env = DrafterEnv(self.model, 1, self.ctx, draft=DraftFiles.of(self.draft), history=True, **where)
            self.engine = make_engine(self.model, options, env)
        self.engine.forget_texts()
        self.engine.prefix_cache.clear()
        return self.engine


@contextlib.contextmanager
def protocol_stream() -> Iterator[Any]:
    """Standard output for replies alone: whatever else prints goes to standard error."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", buffering=1) as stream:
        os.dup2(2, 1)
        yield stream


def main() -> None:
    """Serve until standard input ends."""
    with protocol_stream() as out:
        worker: Worker | None = None
        for line in sys.stdin:
            message = json.loads(line)
            op = message.pop("op")
            try:
                if op == "load":
                    worker = Worker(**message)
                    reply: Any = worker.op_describe()
                elif worker is None:
                    raise LcspecError("no model is loaded")
                else:
                    reply = getattr(worker, f"op_{op}")(**message)
                print(json.dumps({"ok": reply}), file=out)
            except LcspecError as error:
                print(json.dumps({"error": str(error)}), file=out)
            except Exception as error:
                print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=out)


if __name__ == "__main__":
    main()

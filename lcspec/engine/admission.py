"""What a request must pass before it is queued, and what is made ready for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lcspec.config import SpeculationParams
from lcspec.drafters import create
from lcspec.drafters.memory import restored
from lcspec.engine.sequence import Request
from lcspec.errors import ContextOverflow, UnsupportedModel, UsageError
from lcspec.llama import Branching
from lcspec.planner.learned import meet, prepare
from lcspec.profiles.certification import certificate_for
from lcspec.spec.verifiers import make_verifier

if TYPE_CHECKING:
    from lcspec.engine.engine import Engine


def check_request(request: Request, n_ctx: int, n_vocab: int) -> None:
    """Refuse what cannot run in a context of `n_ctx` tokens and a vocabulary of `n_vocab`.

    Raises:
        UsageError: the prompt is empty, the token limit negative, a token id outside the vocabulary, or the verifier
            one that cannot keep to a grammar.
        ContextOverflow: the prompt does not fit.
    """
    if not request.prompt:
        raise UsageError("the prompt is empty: give at least one token of text")
    if len(request.prompt) >= n_ctx:
        raise ContextOverflow(
            f"the prompt has {len(request.prompt)} tokens and the context holds {n_ctx}: "
            "shorten the prompt or raise --ctx"
        )
    if request.max_tokens is not None and request.max_tokens < 0:
        raise UsageError(f"the number of tokens to generate must be 0 or more, not {request.max_tokens}")
    for token in (min(request.prompt), max(request.prompt)):
        if not 0 <= token < n_vocab:
            raise UsageError(f"the prompt holds token {token}, and the vocabulary ends at {n_vocab - 1}")
    request.sampling.check_vocabulary(n_vocab)
    if request.sampling.grammar is not None and not make_verifier(request.speculation.verifier).lossless:
        # It judges by the model's own distribution.
        raise UsageError(
            f"the verifier {request.speculation.verifier} may accept what a grammar or JSON schema forbids: "
            "use coupled with it"
        )


def check_writes(engine: Engine) -> None:
    """Refuse an encoder.

    Raises:
        UnsupportedModel: the model has no memory, so it can only read.
    """
    if engine.context.memory is None:
        raise UnsupportedModel(
            f"{engine.model.options.path.name} reads texts and writes none: use it for embeddings, or load a "
            "text-generation GGUF"
        )


def make_ready(engine: Engine, spec: SpeculationParams) -> SpeculationParams:
    """Check a request's speculation and make what it needs: drafters, cost curve, certificate.

    Returns the parameters as they can be run: `auto` becomes plain decoding where nothing can be taken back.

    Raises:
        LcspecError: something cannot be had; the message says why.
    """
    check_writes(engine)
    if not make_verifier(spec.verifier).lossless and spec.exact:
        raise UsageError(f"the verifier {spec.verifier} changes the text, so --exact cannot go with it")
    if spec.exact and not engine.independent:
        if engine.exact_apart:
            engine.certificate = engine.lanes.certificate()
        else:
            engine.certificate = engine.certificate or certificate_for(engine.shelf, engine.pad)
    if spec.auto and engine.context.branching is Branching.NONE:
        return replace(spec, drafters=(), auto=False)  # the best choice for such a model is plain decoding
    if spec.drafters and engine.context.branching is Branching.NONE:
        raise UnsupportedModel(
            f"{engine.model.options.path.name} was loaded without states to go back to, because speculation was off, "
            "so nothing can be drafted: start again with --speculate auto"
        )
    for d in spec.drafters:
        if d.name not in engine.drafters:
            engine.drafters[d.name] = restored(create(d.name, engine.env), engine.env)
    if spec.auto and spec.drafters:
        engine.auto = engine.auto or prepare(engine.context, engine.pad.seq, engine.env, list(engine.drafters))
        if not engine.running:
            meet(engine.auto, [engine.drafters[d.name] for d in spec.drafters])
    return spec

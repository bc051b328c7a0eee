"""What a request must pass before it is queued."""

from __future__ import annotations

from dataclasses import replace

from lcspec.config import SpeculationParams
from lcspec.engine.request import Request
from lcspec.errors import ContextOverflow, UnsupportedModel, UsageError
from lcspec.llama import Branching, Context
from lcspec.spec.verifiers import make_verifier


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
    if len(request.prompt) + len(request.emitted) >= n_ctx:
        raise ContextOverflow(f"the text has {len(request.prompt) + len(request.emitted)} tokens, and that is the end")
    for token in (min(request.prompt), max(request.prompt)):
        if not 0 <= token < n_vocab:
            raise UsageError(f"the prompt holds token {token}, and the vocabulary ends at {n_vocab - 1}")
    request.sampling.check_vocabulary(n_vocab)
    if request.sampling.constrained and not make_verifier(request.speculation.verifier).lossless:
        # It judges by the model's own distribution.
        raise UsageError(
            f"the verifier {request.speculation.verifier} may accept what a grammar, a JSON schema or a "
            "reasoning budget forbids: use coupled with it"
        )


def check_writes(context: Context) -> None:
    """Refuse an encoder.

    Raises:
        UnsupportedModel: the model has no memory, so it can only read.
    """
    if context.memory is None:
        raise UnsupportedModel(
            f"{context.model.options.path.name} reads texts and writes none: use it for embeddings, or load a "
            "text-generation GGUF"
        )


def possible(context: Context, spec: SpeculationParams) -> SpeculationParams:
    """A request's speculation as it can be run: `auto` becomes plain decoding where nothing can be taken back.

    Raises:
        UnsupportedModel: the model cannot write, or drafters are named and nothing can be taken back.
        UsageError: the verifier is unknown, or changes the text although it is to be exact.
    """
    check_writes(context)
    if not make_verifier(spec.verifier).lossless and spec.exact:
        raise UsageError(f"the verifier {spec.verifier} changes the text, so --exact cannot go with it")
    if context.branching is not Branching.NONE:
        return spec
    if spec.auto:
        return replace(spec, drafters=(), auto=False)  # the best choice for such a model is plain decoding
    if spec.drafters:
        raise UnsupportedModel(
            f"{context.model.options.path.name} was loaded without states to go back to, because speculation was off, "
            "so nothing can be drafted: start again with --speculate auto"
        )
    return spec

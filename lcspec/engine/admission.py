"""Checks that a request must pass before it is queued."""

from __future__ import annotations

from dataclasses import replace

from lcspec.config import SpeculationParams
from lcspec.engine.request import Request
from lcspec.errors import ContextOverflow, UnsupportedModel, UsageError
from lcspec.llama import Branching, Context
from lcspec.spec.verifiers import make_verifier


def check_request(request: Request, n_ctx: int, n_vocab: int) -> None:
    """Refuse a request that cannot run in a context of `n_ctx` tokens with a vocabulary of `n_vocab` tokens.

    Raises:
        UsageError: the prompt is empty, the token limit negative, a token id outside the vocabulary, or the verifier
            cannot follow a grammar.
        ContextOverflow: the prompt does not fit.
    """
    if not request.prompt:
        raise UsageError("the prompt is empty: give at least one token of text")
    if len(request.prompt) >= n_ctx:
        raise ContextOverflow.of_prompt(len(request.prompt), n_ctx)
    if request.max_tokens is not None and request.max_tokens < 0:
        raise UsageError(f"the number of tokens to generate must be 0 or more, not {request.max_tokens}")
    if len(request.prompt) + len(request.emitted) >= n_ctx:
        raise ContextOverflow(f"the text has {len(request.prompt) + len(request.emitted)} tokens, and that is the end")
    for token in (min(request.prompt), max(request.prompt)):
        if not 0 <= token < n_vocab:
            raise UsageError(f"the prompt holds token {token}, but the vocabulary ends at {n_vocab - 1}")
    request.sampling.check_vocabulary(n_vocab)
    if request.sampling.constrained and not make_verifier(request.speculation.verifier).lossless:
        # Such a verifier judges by the model's own distribution, which knows nothing of the grammar.
        raise UsageError(
            f"the verifier {request.speculation.verifier} may accept what a grammar, a JSON schema or a "
            "reasoning budget forbids: use coupled with it"
        )


def check_writes(context: Context) -> None:
    """Refuse a model that generates no text.

    Raises:
        UnsupportedModel: the model is an encoder: it has no KV cache.
    """
    if not context.memory.exists:
        raise UnsupportedModel(
            f"{context.model.options.path.name} is an encoder and generates no text: use it for embeddings, or load a "
            "text-generation GGUF"
        )


def possible(context: Context, spec: SpeculationParams) -> SpeculationParams:
    """A request's speculation as it can run: `auto` becomes plain decoding if the memory cannot be rolled back.

    Raises:
        UnsupportedModel: the model generates no text, or drafters are named and the memory cannot be rolled back.
        UsageError: the verifier is unknown, or the text would depend on drafts although the request is exact.
    """
    check_writes(context)
    verifier = make_verifier(spec.verifier)
    if spec.exact and not verifier.lossless:
        raise UsageError(f"the verifier {spec.verifier} changes the text, so --exact cannot go with it")
    if spec.exact and verifier.draws:
        raise UsageError(
            f"the verifier {spec.verifier} keeps the distribution, but its text depends on the drafts, so --exact "
            "cannot go with it: use coupled"
        )
    if context.memory.branching is not Branching.NONE:
        return spec
    if spec.auto:
        return replace(spec, drafters=(), auto=False)  # for such a model, plain decoding is the best choice
    if spec.drafters:
        raise UnsupportedModel(
            f"{context.model.options.path.name} was loaded without states to roll back to, because speculation was "
            "off, so nothing can be drafted: start again with --speculate auto"
        )
    return spec

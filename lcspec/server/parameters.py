"""From request bodies to what the engine takes: sampling, speculation, model names, unknown parameters."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Mapping

from lcspec.config import DrafterSpec, DraftFiles, SpeculationParams
from lcspec.errors import UsageError
from lcspec.sampling.parameters import SamplingParams
from lcspec.server.errors import invalid
from lcspec.server.samplers import switched_off
from lcspec.server.schemas import Sampling, Speculation
from lcspec.server.settings import ServerSettings
from lcspec.session import parse_speculation

if TYPE_CHECKING:
    from lcspec.sampling.grammar import CompiledGrammar

SAMPLED = tuple(name for name in Sampling.model_fields if name not in ("seed", "samplers", "dry_sequence_breakers"))
NUMBER = re.compile(r"([+-]?\d+(\.\d+)?|auto)$")


def sampling_params(
    body: Sampling,
    grammar: str | CompiledGrammar | None,
    bias: Mapping[str, float] | None,
    n_vocab: int,
    index: int = 0,
    fixed: tuple[tuple[int, float], ...] = (),
    usual: Mapping[str, Any] = MappingProxyType({}),
) -> SamplingParams:
    """Sampling of the `index`-th text of a request; a given seed counts up from text to text. `fixed`: a bias that the
    request's own cannot change; `usual`: what is sampled with where it says nothing.

    Raises:
        ApiError: a token of the bias is not in the vocabulary.
        SamplingError: a value is out of its range.
    """
    given = {name: value for name, value in usual.items() if name != "seed"}
    given |= {name: getattr(body, name) for name in SAMPLED if getattr(body, name) is not None}
    if body.dry_sequence_breakers is not None:
        given["dry_sequence_breakers"] = tuple(body.dry_sequence_breakers)
    if body.samplers is not None:
        given |= switched_off(body.samplers)
    first = usual.get("seed") if body.seed is None else body.seed
    seed = None if first in (None, -1) else (first + index) % 2**64  # -1 is a random one, as in llama.cpp
    decided = {token for token, _ in fixed}
    free = [entry for entry in _bias(bias or {}, n_vocab) if entry[0] not in decided]
    return SamplingParams(**given, logit_bias=tuple(sorted((*free, *fixed))), grammar=grammar, seed=seed)


def _bias(bias: Mapping[str, float], n_vocab: int) -> tuple[tuple[int, float], ...]:
    out = []
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < n_vocab):
            raise invalid(
                f"logit_bias: {key[:40]!r} is not a token id of this model (0 to {n_vocab - 1})", "logit_bias"
            )
        out.append((int(key), float(value)))
    return tuple(sorted(out))


def speculation_params(
    wanted: Speculation | None, settings: ServerSettings, draft: DraftFiles, *, has_grammar: bool, has_prediction: bool
) -> SpeculationParams:
    """How a request speculates: what it says, else what the server was started with.

    A prediction is drafted from whatever the server's default is, unless the request itself says `off`.

    Raises:
        ApiError: it is malformed.
    """
    own = wanted or Speculation()
    text = own.drafters if own.drafters is not None else settings.speculate
    if isinstance(text, list):
        text = ",".join(text)
    if own.off:
        text = "off"
    try:
        if own.drafters is not None:
            _harmless(text)
        params = parse_speculation(
            text,
            draft,
            has_grammar=has_grammar,
            has_prediction=has_prediction,
            max_draft=own.max_draft if own.max_draft is not None else settings.max_draft,
            verifier=own.verifier or settings.verifier,
            exact=settings.exact if own.exact is None else own.exact,
        )
    except UsageError as error:
        raise invalid(f"speculation: {error}", "speculation") from error
    asked_off = own.off or own.drafters in ("off", "none", "")
    named = {spec.name for spec in params.drafters}
    if has_prediction and not asked_off and "prediction" not in named:
        drafters = (DrafterSpec("prediction"), *params.drafters)
        params = SpeculationParams(
            drafters,
            # Alone it is drafted where the planner thinks that it pays.
            auto=params.auto or not params.drafters,
            max_draft=params.max_draft,
            verifier=params.verifier,
            exact=params.exact,
        )
    return params


def _harmless(text: str) -> None:
    """Refuse drafter options that are not numbers: some name files, and those are the operator's to choose.

    Raises:
        UsageError: an option's value is something else.
    """
    if text == "auto":
        return
    names = [DrafterSpec.parse(part) for part in text.split(",") if part.strip()]
    if len(names) > 16:
        raise UsageError("at most 16 drafters can be asked for")
    if len({spec.name for spec in names}) != len(names):
        raise UsageError("a drafter is named twice")
    for spec in names:
        for key, value in spec.options.items():
            if not NUMBER.match(value):
                raise UsageError(f"{spec.name}:{key} must be a number in a request")

"""What a request asks for and nobody here reads: ignored with a warning and a header, or refused.

Clients send parameters of other servers. Most of them mean nothing here (`keep_alive`, `num_ctx`, ...), and a client
that cannot be changed is served all the same. Those that would change the text are refused, because an answer that
silently is not what was asked for is worse than none.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Iterable

from starlette.requests import Request

from lcspec.server.errors import ApiError
from lcspec.server.model_entry import Entry
from lcspec.server.models import Models
from lcspec.server.schemas import Echoed, Speculation, Strict
from lcspec.server.settings import ServerSettings

log = logging.getLogger("lcspec.server")
HEADER = "x-lcspec-ignored"
STATE = "lcspec.ignored"
MAX_NAMES = 16  # in the header
SHOWN = 12  # models in an error message
# Parameters of other servers that change the text, with the values that do not; nothing at all never does.
CHANGES_TEXT: dict[str, tuple[Any, ...]] = {
    "adaptive_target": (-1,),
    "audio": (),
    "bad_words": (),
    "banned_strings": (),
    "banned_tokens": (),
    "bos_token_id": (),
    "chat_template": (),
    "continuous_batching": (),
    "control_vectors": (),
    "documents": (),
    "dynatemp_range": (0,),
    "format": (),
    "function_call": ("none", "auto"),
    "functions": (),
    "grammar_lazy": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "image_data": (),
    "images": (),
    "json_schema": ({},),
    "lora": (),
    "mcp_servers": (),
    "min_keep": (0, 1),
    "min_new_tokens": (0,),
    "min_tokens": (0,),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "no_repeat_ngram_size": (0,),
    "regex": (),
    "response_format": ({"type": "text"},),
    "smoothing_factor": (0,),
    "stop_token_ids": (),
    "structured_outputs": (),
    "suffix": (),
    "system": (),
    "tfs_z": (1,),
    "tool_choice": ("none", "auto"),
    "tools": (),
    "top_a": (0,),
    "top_n_sigma": (-1, 0),
    "truncate_prompt_tokens": (-1,),
    "typ_p": (1,),
    "use_beam_search": (),
    "web_search_options": (),
}
_warned: set[str] = set()


def chosen(body: Strict, http: Request, name: str | None) -> tuple[Entry, str]:
    """The model a request is for, and its name for the answer, after a look at what else the request says.

    A model of another name, and parameters that mean nothing here, are noted for the answer's header.

    Raises:
        ApiError: 404, there is no such model and none that answers for others, or, under --strict, another one is
            named; 400 for what would change the text.
    """
    models: Models = http.app.state.models
    ignored = unknown(body, models.settings)
    entry = named(models, name)
    if entry is None:
        entry = usual(models, name)
        if name:
            if models.settings.strict or not models.answers_all:
                raise not_found(models, name)
            ignored.insert(0, "model")
            name = None
    note(http, ignored)
    return entry, name.removesuffix(":latest") if name and name not in entry.names else name or entry.name


def named(models: Models, name: str | None) -> Entry | None:
    """The model of that name, if there is one.

    Raises:
        ApiError: 404, several may be meant.
    """
    return models.find(name) if name else None


def usual(models: Models, name: str | None = None) -> Entry:
    """The model for a request that names none, or (`name`) one that there is not.

    Raises:
        ApiError: 404, there is none.
    """
    entry = models.usual()
    if entry is None:
        raise not_found(models, name or "")
    return entry


def not_found(models: Models, name: str) -> ApiError:
    """404, with the models there are."""
    known = ", ".join(entry.name for entry in models.entries[:SHOWN])
    known += f" and {len(models.entries) - SHOWN} others (GET /v1/models)" if len(models.entries) > SHOWN else ""
    said = f"the model {name[:200]!r} does not exist here" if name else "name a model"
    message = f"{said}: use {known}" if known else f"{said}, and there is none on this machine: lcspec pull gets one"
    return ApiError(404, message, param="model", code="model_not_found")


def unknown(body: Strict, settings: ServerSettings, where: str = "") -> list[str]:
    """Names of parameters nobody reads; looks into nested objects as well.

    Raises:
        ApiError: 400, naming the first one that is refused.
    """
    names = [f"{where}{name}" for name in body.left_out()]
    if names and settings.strict:
        message = f"{names[0]!r} asks for something that is not here: leave it out"
        raise ApiError(400, message, param=names[0], code="unsupported_parameter")
    if isinstance(body, Echoed):
        return names
    names += [f"{where}{name}" for name in body.idle if getattr(body, name) is not None]
    for name, value in (body.model_extra or {}).items():
        shown = f"{where}{name}"[:200]
        if settings.strict or isinstance(body, Speculation):
            raise ApiError(400, f"unknown parameter: {shown!r}", param=shown, code="unknown_parameter")
        neutral = CHANGES_TEXT.get(name)
        if where in ("", "options.") and neutral is not None and value is not None and not settings.ignore_unknown:
            off = value is False or value in ("", [])
            if not off and not any(value == n and type(value) is not bool for n in neutral):
                message = f"{shown!r} is not supported here and would change the text: leave it out"
                raise ApiError(400, message, param=shown, code="unsupported_parameter")
            continue
        if value is not None:
            names.append(shown)
    for field in type(body).model_fields:
        value = getattr(body, field)
        items: Iterable[tuple[int | None, Any]] = enumerate(value) if isinstance(value, list) else [(None, value)]
        for i, item in items:
            if isinstance(item, Strict):
                place = f"{where}{field.rstrip('_')}" + ("." if i is None else f"[{i}].")
                names += unknown(item, settings, place)
    return names


def note(http: Request, names: Iterable[str]) -> None:
    """Keep names for the answer's header; warn of each once."""
    shown = [re.sub(r"[^\w.\[\]-]", "_", name, flags=re.ASCII)[:64] or "_" for name in names]
    known: list[str] = http.scope.setdefault(STATE, [])
    known += [name for name in dict.fromkeys(shown) if name not in known]
    for name in shown:
        plain = re.sub(r"\[\d+\]", "[]", name)
        if plain not in _warned and len(_warned) < 1000:
            _warned.add(plain)
            log.warning("ignored: %s (a client asks for it and it means nothing here; --strict refuses)", plain)

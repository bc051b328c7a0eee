"""Failures as the OpenAI API reports them: a status, and {"error": {message, type, param, code}}."""

from __future__ import annotations

import logging
from typing import Any, Mapping, Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from lcspec.errors import (
    ContextOverflow,
    DecodeError,
    EngineDied,
    ExactnessError,
    GrammarError,
    GrammarFailed,
    LcspecError,
    ModelFileError,
    SamplingError,
    TemplateError,
    TokenizeError,
    UnsupportedModel,
    UsageError,
    VocabularyMismatch,
)

log = logging.getLogger("lcspec.server")

# What the client can do something about; everything else an engine says is ours.
CLIENT_ERRORS = (
    ContextOverflow,
    ExactnessError,
    ModelFileError,
    TemplateError,
    TokenizeError,
    UnsupportedModel,
    UsageError,
    VocabularyMismatch,
)
CODES: dict[type[LcspecError], tuple[str | None, str | None]] = {  # param, code
    ContextOverflow: (None, "context_length_exceeded"),
    GrammarError: ("response_format", "invalid_schema"),
    GrammarFailed: (None, "grammar_failed"),
    SamplingError: (None, "invalid_value"),
}
ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A failure with its HTTP status and the fields of its error body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def kind(self) -> str:
        """The `type` of the error body."""
        return TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def body(self) -> dict[str, Any]:
        """The error body."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self, path: str = "") -> JSONResponse:
        """The whole answer, in the form that clients of `path` read."""
        return JSONResponse(self.body_for(path), self.status, self.headers)

    def body_for(self, path: str) -> dict[str, Any]:
        """The error body as Anthropic's clients, Ollama's, or everybody else's read it."""
        if path.startswith("/v1/messages"):
            kind = ANTHROPIC.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        if path.startswith("/api/"):
            return {"error": self.message}
        return self.body()


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


def invalid(message: str, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    """A request that asks for something wrong: 400."""
    return ApiError(400, message, param=param, code=code)


def missing(param: str) -> ApiError:
    """A field that must be there: 400."""
    return invalid(f"{param}: Field required", param, "missing_required_parameter")


def from_engine(error: LcspecError) -> ApiError:
    """What the engine or the vocabulary refused."""
    if isinstance(error, CLIENT_ERRORS):
        param, code = CODES.get(type(error), (None, None))
        return ApiError(400, str(error), param=param, code=code)
    if isinstance(error, EngineDied):
        return ApiError(500, str(error), code="engine_died")
    if isinstance(error, DecodeError):
        return ApiError(500, str(error), code="decode_failed")
    return ApiError(503, str(error), code="unavailable", headers={"Retry-After": "5"})


# What pydantic says of a body that is text to it, or JSON and no object.
NO_OBJECT = ("model_attributes_type", "model_type", "dict_type")


def path_of(location: Sequence[int | str], body: Any, *, missing: bool = False) -> str | None:
    """`messages[0].content` from a validation error's location in a body.

    Pydantic's names for the members of a union are left out: the body has none of that name there. Nor has it the last
    name of what is missing.
    """
    out, at = "", body
    for i, part in enumerate(location):
        if isinstance(part, int):
            out += f"[{part}]"
            at = at[part] if isinstance(at, list) and part < len(at) else None
        elif isinstance(at, Mapping) and part in at:
            out += f".{part}" if out else part
            at = at[part]
        elif missing and i + 1 == len(location):
            out += f".{part}" if out else part
    return out or None


def from_validation(problems: Sequence[Mapping[str, Any]], body: Any) -> ApiError:
    """The first of pydantic's complaints of a body; never the value, which may be a prompt."""
    problem = problems[0] if problems else {}
    location, kind = list(problem.get("loc", ())), str(problem.get("type", ""))
    if kind == "json_invalid":
        return invalid("the request body is not valid JSON", None, "invalid_json")
    param = path_of(location[1:] if location[:1] == ["body"] else location, body, missing=kind == "missing")
    if param is None and kind in ("missing", *NO_OBJECT):
        wanted = (
            "has no JSON body: send one"
            if kind == "missing"
            else "body is no JSON object, or not declared as JSON: send one"
        )
        return invalid(f"the request {wanted} with content-type: application/json", None, None)
    text = str(problem.get("msg", "is not valid"))
    code = "missing_required_parameter" if kind == "missing" else "invalid_value"
    return invalid(f"{param or 'the request body'}: {text[:300]}", param, code)


def install_handlers(app: FastAPI) -> None:
    """Give every failure of `app` an OpenAI error body."""

    @app.exception_handler(ApiError)
    async def _api(request: Request, error: ApiError) -> JSONResponse:
        return error.response(request.url.path)

    @app.exception_handler(LcspecError)
    async def _engine(request: Request, error: LcspecError) -> JSONResponse:
        return from_engine(error).response(request.url.path)

    @app.exception_handler(ClientGone)
    async def _gone(request: Request, error: ClientGone) -> Response:
        return Response(status_code=499)  # for the log: nobody reads it

    @app.exception_handler(RequestValidationError)
    async def _validation(request: Request, error: RequestValidationError) -> JSONResponse:
        return from_validation(error.errors(), error.body).response(request.url.path)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        message = {
            404: f"there is no {request.url.path} here",
            405: f"{request.url.path} does not take {request.method}",
        }.get(error.status_code, str(error.detail))
        return ApiError(error.status_code, message, headers=error.headers).response(request.url.path)

    @app.exception_handler(UnicodeEncodeError)
    async def _surrogates(request: Request, error: UnicodeEncodeError) -> JSONResponse:
        return invalid("the request contains text that is not valid Unicode (a lone surrogate)").response(
            request.url.path
        )

    @app.exception_handler(Exception)
    async def _bug(request: Request, error: Exception) -> JSONResponse:
        # The exception itself is logged by the server; its text may hold a prompt and stays there.
        return ApiError(500, "internal error: the server's log says more. Please report it.").response(request.url.path)

"""What went wrong, as JSON: {"error": {"code", "message", "type", "param"}} with one sentence in `message`.

The shape is OpenAI's, so that its client raises the right exception; `code` is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from photon.errors import (
    EngineDeadError,
    ImageError,
    InvalidRequestError,
    PhotonError,
    QueueFullError,
    RequestFailedError,
)

RETRY_AFTER_S = 1
CLIENT_GONE = 499
"""Nobody will read the response: the status that proxies log for it."""

_PHOTON: tuple[tuple[type[PhotonError], int, str], ...] = (
    (QueueFullError, 429, "busy"),
    (ImageError, 400, "invalid_image"),
    (InvalidRequestError, 400, "invalid_request"),
    (EngineDeadError, 503, "engine_dead"),
    (RequestFailedError, 500, "request_failed"),
    (PhotonError, 500, "internal"),
)
_CODES = {401: "unauthorized", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 429: "busy"}
_MAX_NAME = 80


class ErrorDetail(BaseModel):
    """`code` for programs, `message` for people."""

    code: str
    message: str
    type: str
    param: str | None = None


class ErrorBody(BaseModel):
    """Every response that is not 2xx."""

    error: ErrorDetail


def status_of(error: PhotonError) -> tuple[int, str]:
    """HTTP status and code of an engine's error."""
    return next((status, code) for kind, status, code in _PHOTON if isinstance(error, kind))


def error_body(status: int, code: str, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    sentence = message if message.endswith(".") else f"{message}."
    return {"error": {"code": code, "message": sentence, "type": kind, "param": None}}


def refuse(status: int, message: str, code: str | None = None) -> Response:
    """A refusal. Those that pass by themselves say when to come back."""
    code = code or _CODES.get(status, "invalid_request" if status < 500 else "internal")
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 429 else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(status, code, message), status, headers)


async def on_photon_error(request: Request, error: Any) -> Response:
    status, code = status_of(error)
    return refuse(status, str(error), code)


async def on_http_error(request: Request, error: Any) -> Response:
    if error.detail in (HTTPStatus(404).phrase, HTTPStatus(405).phrase):  # nobody has said more
        path = request.url.path[:_MAX_NAME]
        return refuse(error.status_code, f"There is no {request.method} {path}; see /v1/docs.")
    if error.status_code == 400:  # FastAPI's word for a body that json cannot take
        return refuse(400, "The body cannot be read as JSON; send one object in UTF-8.")
    return refuse(error.status_code, error.detail)


async def on_invalid_body(request: Request, error: Any) -> Response:
    return refuse(400, sentence(error.errors()[0]))


async def on_any_error(request: Request, error: Exception) -> Response:
    return refuse(500, "The server failed on this request; its log says why.")


def sentence(problem: Mapping[str, Any]) -> str:
    """The first thing that is wrong with a body, in one sentence."""
    kind, where = problem["type"], problem["loc"][1:]
    if kind == "json_invalid":
        return f"The body is not valid JSON: {problem['ctx']['error']}."
    if not where:
        return "The body must be a JSON object, sent with the header Content-Type: application/json."
    field = ".".join(map(str, where))[:_MAX_NAME]
    if kind == "missing":
        return f"The field {field!r} is missing."
    if kind == "extra_forbidden":
        return f"The field {field!r} is not supported; leave it out."
    return f"The field {field!r} is wrong: {problem['msg'].removeprefix('Input ').rstrip('.')}."


HANDLERS: Mapping[Any, Any] = {
    PhotonError: on_photon_error,
    HTTPException: on_http_error,
    RequestValidationError: on_invalid_body,
    Exception: on_any_error,
}

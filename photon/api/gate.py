"""Gate: what is asked of a request before anybody reads its body. API key, size, number of open ones."""

from __future__ import annotations

import secrets

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from photon.api.config import MIB, ApiConfig
from photon.api.errors import refuse

_PUBLIC = ("/docs", "/openapi.json")


class Gate:
    """ASGI app around another."""

    def __init__(self, app: ASGIApp, config: ApiConfig) -> None:
        self._app, self._config = app, config
        self._num_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if refusal := self._refusal(scope):
            await self._drain(receive)
            await refusal(scope, receive, send)
            return
        self._num_open += 1
        try:
            await self._app(scope, self._limited(receive), send)
        finally:
            self._num_open -= 1

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not (scope["path"].endswith(_PUBLIC) or self._knows_key(headers)):
            return refuse(401, "The API key is missing or wrong; send it as Authorization: Bearer KEY.")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._config.max_body_bytes:
            return refuse(413, self._too_large)
        if self._num_open >= self._config.max_open:
            return refuse(429, f"{self._num_open} requests are open; try again later.")
        return None

    def _knows_key(self, headers: Headers) -> bool:
        if self._config.api_key is None:
            return True
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        wanted = self._config.api_key.encode()
        given = (headers.get("x-moondream-auth", ""), bearer)
        return any(secrets.compare_digest(key.encode(), wanted) for key in given)

    @property
    def _too_large(self) -> str:
        limit = self._config.max_image_bytes // MIB
        return f"The body is too large; an image may have {limit} MB."

    def _limited(self, receive: Receive) -> Receive:
        """`receive` that refuses a body which turns out larger than it may be."""
        num_bytes = 0

        async def limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._config.max_body_bytes:
                raise HTTPException(413, self._too_large)
            return message

        return limited

    async def _drain(self, receive: Receive) -> None:
        """Read and drop the body: a client that still writes does not see the refusal. Not without end."""
        left = 4 * self._config.max_body_bytes
        while left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            if not message.get("more_body", False):
                return

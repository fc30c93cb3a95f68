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
        self._num_open = self._num_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if refusal := self._refusal(scope):
            await self._drain(receive)
            await refusal(scope, receive, send)
            return
        body = Body(receive, self)
        self._num_open += 1
        try:
            await self._app(scope, body.receive, send)
        finally:
            self._num_open -= 1
            self._num_bytes -= body.num_bytes

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if not (scope["path"].endswith(_PUBLIC) or self._knows_key(headers)):
            return refuse(401, "The API key is missing or wrong; send it as Authorization: Bearer KEY.")
        if self._num_open >= self._config.max_open:
            return refuse(429, f"{self._num_open} requests are open; try again later.")
        length = headers.get("content-length", "0")
        try:
            self.check_size(int(length) if length.isdecimal() else 0, 0)
        except HTTPException as error:
            return refuse(error.status_code, error.detail)
        return None

    def check_size(self, num_bytes: int, num_counted: int) -> None:
        """Raise HTTPException for a body of `num_bytes`, of which `num_counted` are counted as open."""
        if num_bytes > self._config.max_body_bytes:
            limit = self._config.max_body_bytes // MIB
            raise HTTPException(413, f"The body is too large; it may have {limit} MB.")
        if self._num_bytes + num_bytes - num_counted > self._config.max_open_bytes:
            raise HTTPException(429, "The open requests are too large together; try again later.")

    def _knows_key(self, headers: Headers) -> bool:
        if self._config.api_key is None:
            return True
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        wanted = self._config.api_key.encode()
        given = (headers.get("x-moondream-auth", ""), bearer)
        return any(secrets.compare_digest(key.encode(), wanted) for key in given)

    def count(self, num_bytes: int) -> None:
        """Bytes of some open request's body have come."""
        self._num_bytes += num_bytes

    async def _drain(self, receive: Receive) -> None:
        """Read and drop the body: a client that still writes does not see the refusal. Not without end."""
        left = 4 * self._config.max_body_bytes
        while left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            if not message.get("more_body", False):
                return


class Body:
    """A request's body as it comes, counted."""

    def __init__(self, receive: Receive, gate: Gate) -> None:
        self._receive, self._gate = receive, gate
        self.num_bytes = 0

    async def receive(self) -> Message:
        """The next message. Raises HTTPException when the body turns out larger than it may be."""
        message = await self._receive()
        size = len(message.get("body", b""))
        self._gate.check_size(self.num_bytes + size, self.num_bytes)
        self._gate.count(size)
        self.num_bytes += size
        return message

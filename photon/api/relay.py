"""One HTTP request through Ray: a Forward at the front, an Exchange in the replica, ASGI at both ends.

    front     Forward(scope, receive, send)   respond ─>   <─ messages of the response, as they come
    replica   Exchange.receive, .send         feed ─>      <─ among them wishes for more of the body

Which replica it is, the session says, to Ray's consistent hashing and to Router: the hash of an image for
programs, and for a browser its cookie, which names the replica that gave it the page.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import secrets
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, RunningReplica
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from photon.api.calls import failure_event
from photon.errors import EngineDeadError

log = logging.getLogger(__name__)

REPLICA_HEADER = b"x-photon-replica"
"""In every response: which replica answered, as Ray's status and logs name it."""

COOKIE = "photon-replica"
"""REPLICA.VISITOR: who gave a browser its page, and what spreads the visitors of a replica that has ended."""

_CONNECTION = ("type", "asgi", "http_version", "scheme", "client", "server", "root_path")
_SCOPE_KEYS = (*_CONNECTION, "method", "path", "raw_path", "query_string", "headers")
_DATA_URL = re.compile(rb'"data:[^"]*')
_SESSION = re.compile(r"(?:(\w+)\.)?(\w+)")
_MORE = "photon.more"  # a message of ours among those of ASGI: the app asks for more of the body
_GONE = "The replica that worked on this request has ended; ask again."


class Exchange:
    """One request in a replica: ASGI's receive and send, with a client that is elsewhere.

    Each part of the body but the first is asked for, so that an upload is written to disk as it comes.
    """

    def __init__(self, replica: str, body: Message) -> None:
        self.name = secrets.token_hex(8)
        self.messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._replica, self._left = replica, asyncio.Event()
        self._bodies: asyncio.Queue[Message] = asyncio.Queue()
        self._is_more = self._is_asked = False
        self.feed(body)

    async def receive(self) -> Message:
        """The body, part by part; then nothing until the client has left."""
        if self._is_more and self._bodies.empty() and not self._is_asked:
            self._is_asked = True
            self.messages.put_nowait({"type": _MORE, "exchange": self.name, "replica": self._replica})
        if self._is_more or not self._bodies.empty():
            return await self._bodies.get()
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """A message of the response; dropped once the client has left."""
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (REPLICA_HEADER, self._replica.encode())]
        if not self._left.is_set():
            self.messages.put_nowait(message)

    def feed(self, body: Message) -> None:
        """The part of the body that was asked for, or that the client has left."""
        self._is_asked, self._is_more = False, body.get("more_body", False)
        self._bodies.put_nowait(body)

    def leave(self) -> None:
        """The client has left, or has all."""
        self._left.set()
        if self._is_more:
            self.feed({"type": "http.disconnect"})


class Forward:
    """The front's end; a subclass is an ASGI app that says which session a request belongs to."""

    def __init__(self, replicas: DeploymentHandle) -> None:
        self._respond = replicas.options(method_name="respond", stream=True)
        self._feed = replicas.options(method_name="feed")

    async def relay(self, session: str, scope: Scope, body: Message, receive: Receive, send: Send) -> None:
        """Pass on the request, whose body begins with `body`, and its response.

        Raises:
            EngineDeadError: the replica ended before it answered. Ends it later, the response is cut short.
        """
        has_begun = False
        plain = {key: scope[key] for key in _SCOPE_KEYS if key in scope}
        response: Any = self._respond.options(session_id=session).remote(plain, body)
        try:
            async for message in response:
                if message["type"] == _MORE:
                    feed = self._feed.options(session_id=message["replica"])
                    await feed.remote(message["exchange"], await receive())
                    continue
                has_begun = True
                await send(message)
        except (RayError, RayServeException) as cause:
            log.error("a replica has ended", exc_info=cause)
            error = EngineDeadError(_GONE)
            if not has_begun:
                raise error from None
            await self.cut_short(error, send)
        finally:
            response.cancel()

    async def cut_short(self, error: EngineDeadError, send: Send) -> None:
        """End a response whose replica has ended: here, so that the client sees a broken connection."""
        raise error


class ForwardByImage(Forward):
    """ASGI app for programs: the replica that knows the image."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await Request(scope, receive).body()
        await self.relay(image_hash(body), scope, {"type": "http.request", "body": body}, receive, send)

    async def cut_short(self, error: EngineDeadError, send: Send) -> None:
        """As a stream says anywhere that its request has failed."""
        await send({"type": "http.response.body", "body": failure_event(error)})


class ForwardByVisitor(Forward):
    """ASGI app for browsers: the replica that gave them the page, and one of the others once it has ended."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = _SESSION.fullmatch(Request(scope).cookies.get(COOKIE, ""))
        replica, visitor = known.groups("") if known else ("", secrets.token_hex(8))

        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                name = dict(message["headers"])[REPLICA_HEADER].decode()
                cookie = f"{COOKIE}={name}.{visitor}; Path=/; HttpOnly; SameSite=Lax"
                if name != replica:
                    message["headers"].append((b"set-cookie", cookie.encode()))
            await send(message)

        await self.relay(f"{replica}.{visitor}", scope, await receive(), receive, send_with_cookie)


class Router(ConsistentHashRouter):
    """The replica that the session names up to a dot; else, or once that has ended, a hash of the session."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        ranks = await super().choose_replicas(candidate_replicas, pending_request)
        session = pending_request.metadata.session_id if pending_request else ""
        name = session.partition(".")[0]
        named = [replica for replica in candidate_replicas if replica.replica_id.unique_id == name]
        return [named] if named else ranks


def image_hash(body: bytes) -> str:
    """What questions about one image have in common; "" for a body without one, which any replica takes."""
    found = _DATA_URL.search(body)
    return hashlib.blake2b(found[0], digest_size=16).hexdigest() if found else ""

"""OpenAI's chat route for one question about one image.

    POST /v1/chat/completions   {"model", "messages", "stream"?, "max_tokens"?, "temperature"?, ...}

Moondream 2 has no chat: the messages must come down to one question. That is one user message of text and
at most one image (a data URL); system text is put before the question. Fields that cannot change the answer
are ignored (`IGNORED`), those at a value that asks for nothing are taken (`NEUTRAL`), all others refused.
Without a temperature the answer is greedy. `reasoning` is an addition of Moondream's cloud.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from photon.api.calls import Call, Calls, EventStream, pieces
from photon.api.models import check_model
from photon.errors import InvalidRequestError

IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
NEUTRAL: dict[str, Any] = {
    "n": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logprobs": False,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "tools": [],
    "tool_choice": "none",
    "modalities": ["text"],
}
_SETTINGS = ("temperature", "top_p", "seed", "stop")


Ignored = Field(description="Ignored.")


class Strict(BaseModel):
    """Refuses what it does not know."""

    model_config = ConfigDict(extra="forbid")


class ImageUrl(Strict):
    """`detail` is ignored: the crops follow the image's size."""

    url: Annotated[str, Field(description="data:image/...;base64,...; web addresses are refused.")]
    detail: Annotated[str, Ignored] = "auto"


class ImagePart(Strict):
    type: Literal["image_url"]
    image_url: ImageUrl


class TextPart(Strict):
    type: Literal["text"]
    text: str


Part = Annotated[ImagePart | TextPart, Field(discriminator="type")]


class Message(Strict):
    role: Annotated[str, Field(description="user, or system (developer) for text before the question.")]
    content: str | list[Part]
    name: Annotated[str | None, Ignored] = None

    @property
    def parts(self) -> list[ImagePart | TextPart]:
        """The content, as parts in any case."""
        if isinstance(self.content, str):
            return [TextPart(type="text", text=self.content)]
        return self.content


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: Annotated[bool, Ignored] = False


class ChatBody(Strict):
    """A question in OpenAI's format. A field that is null counts as left out."""

    messages: list[Message]
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    reasoning: bool = False

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        return {
            name: value
            for name, value in fields.items()
            if value is not None and name not in IGNORED and (name, value) not in NEUTRAL.items()
        }

    @property
    def settings(self) -> dict[str, Any]:
        """As the engine names them; None where nothing was said."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return {"max_tokens": limit} | {name: getattr(self, name) for name in _SETTINGS}


def chat_routes(calls: Calls) -> APIRouter:
    """The one route."""
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/chat/completions")
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        """Answer a question in OpenAI's format."""
        check_model(calls.engine, body.model)
        question, image_url = question_of(body.messages)
        call = await calls.start(
            "query", image_url, prompt=question, reasoning=body.reasoning, settings=body.settings
        )
        head = {
            "id": f"chatcmpl-{call.handle.request_id}",
            "created": int(calls.config.now_s()),
            "model": calls.engine.model.config.name,
        }
        if body.stream:
            events = chunks(call, head, body.stream_options.include_usage)
            return EventStream(events, lambda: calls.close(call))
        result = await calls.result(call, request)
        message = {"role": "assistant", "content": result["answer"], **_reasoning(result)}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": result["finish_reason"]}
        return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": usage(call)})

    return routes


def question_of(messages: Sequence[Message]) -> tuple[str, str | None]:
    """The text and the image's URL that the messages come down to.

    Raises:
        InvalidRequestError: they are a conversation, or hold several images.
    """
    roles = [message.role for message in messages]
    if others := [role for role in roles if role not in ("system", "developer", "user")]:
        raise InvalidRequestError(f"The role {others[0][:80]!r} is not supported; send one question.")
    if (count := roles.count("user")) != 1:
        raise InvalidRequestError(f"There are {count} user messages; send exactly one, with one question.")
    parts = [part for message in sorted(messages, key=_is_question) for part in message.parts]
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    urls = [part.image_url.url for part in parts if isinstance(part, ImagePart)]
    if len(urls) > 1:
        raise InvalidRequestError(f"There are {len(urls)} images; send one, with one question.")
    return "\n".join(texts), urls[0] if urls else None


def _is_question(message: Message) -> bool:
    return message.role == "user"


async def chunks(call: Call, head: dict[str, Any], include_usage: bool) -> AsyncIterator[Any]:
    """The answer as chunks of a chat completion, and the mark after the last."""

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**head, "object": "chat.completion.chunk", "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    async for piece in pieces(call, "answer"):
        yield chunk({"content": piece})
    result = call.handle.result(timeout=0)
    yield chunk(_reasoning(result), result["finish_reason"])
    if include_usage:
        yield {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage(call)}
    yield "[DONE]"


def usage(call: Call) -> dict[str, int]:
    metrics = call.handle.metrics
    assert metrics is not None, "a finished request has its metrics"
    prompt, completion = metrics.input_tokens, metrics.output_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _reasoning(result: dict[str, Any]) -> dict[str, Any]:
    """Text and grounding of the reasoning, under the names that the `moondream` client knows."""
    if "reasoning" not in result:
        return {}
    text, grounding = result["reasoning"]["text"], result["reasoning"]["grounding"]
    return {"reasoning": text, "reasoning_details": {"grounding": grounding}}

"""Pins OpenAI's chat route with the `openai` package: whole and streamed, usage, images, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import engines
import openai
import pytest
from served import Server, data_url, png, serving, wait_until

from photon import Engine
from photon.api import Meter
from photon.device.deferred import DeferredDevice

QUESTION = "tell me more"  # to which the minuscule model has more than a token to say
MODEL = engines.tiny_model().config.name


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    meter = Meter()
    with (
        Engine(engines.tiny_model(), DeferredDevice(0), observers=[meter]) as engine,
        serving(engine, meter) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def user(text: str, *images: bytes) -> list[Any]:
    """One user message with images."""
    parts = [
        {"type": "image_url", "image_url": {"url": data_url(image), "detail": "low"}} for image in images
    ]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def test_an_answer_is_the_engines_with_its_usage(server: Server, client: openai.OpenAI) -> None:
    wanted = server.engine.query(png(), QUESTION, settings={"max_tokens": 8})
    found = client.chat.completions.create(model=MODEL, messages=user(QUESTION, png()), max_tokens=8)
    (choice,) = found.choices
    assert (choice.message.role, choice.message.content) == ("assistant", wanted["answer"])
    assert choice.finish_reason == wanted["finish_reason"]
    assert found.usage is not None
    assert found.usage.completion_tokens == 8
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert (found.model, found.object) == (MODEL, "chat.completion")


def test_a_stream_is_the_same_answer_and_ends_with_the_usage(server: Server, client: openai.OpenAI) -> None:
    wanted = server.engine.query(png(), QUESTION, settings={"max_tokens": 8})
    stream = client.chat.completions.create(
        model=MODEL,
        messages=user(QUESTION, png()),
        max_completion_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == wanted["answer"]
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [wanted["finish_reason"]]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 8
    assert len({chunk.id for chunk in (*chunks, last)}) == 1


def test_sampling_follows_temperature_seed_and_stop(server: Server, client: openai.OpenAI) -> None:
    settings = {"temperature": 1.0, "top_p": 0.9, "seed": 3, "stop": ["e"], "max_tokens": 12}
    found = client.chat.completions.create(model=MODEL, messages=user("go on"), **settings)
    assert found.choices[0].message.content == server.engine.query(None, "go on", settings=settings)["answer"]


def test_system_text_stands_before_the_question(server: Server, client: openai.OpenAI) -> None:
    messages: list[Any] = [*user("what?"), {"role": "system", "content": "be brief"}]
    found = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8)
    wanted = server.engine.query(None, "be brief\nwhat?", settings={"max_tokens": 8})
    assert found.choices[0].message.content == wanted["answer"]


def test_fields_that_ask_for_nothing_are_taken(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model=MODEL,
        messages=user("what?"),
        max_tokens=2,
        n=1,
        user="somebody",
        presence_penalty=0,
        response_format={"type": "text"},
    )
    assert found.choices[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 2}, "'n' is not supported"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "'tools' is not supported"),
        ({"response_format": {"type": "json_object"}}, "'response_format' is not supported"),
        ({"logprobs": True}, "'logprobs' is not supported"),
        ({"temperature": 99}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "0 user messages"),
        ({"messages": user("a") + user("b")}, "2 user messages"),
        ({"messages": [{"role": "assistant", "content": "hello"}]}, "role 'assistant'"),
        ({"messages": user("a", png(1), png(2))}, "2 images"),
        ({"messages": user("")}, "prompt is empty"),
        ({"messages": user("a", b"no image")}, "not an image"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages.0.content"),
        ({"messages": "hello"}, "'messages' is wrong"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_sentence(
    client: openai.OpenAI, fields: dict[str, Any], words: str
) -> None:
    body = {"model": MODEL, "messages": user("what?"), **fields}
    with pytest.raises(openai.BadRequestError, match=words) as error:
        client.chat.completions.create(**body)
    assert error.value.type == "invalid_request_error"


def test_a_web_address_is_refused_and_not_fetched(client: openai.OpenAI) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://127.0.0.1:9/cat.png"}}
    with pytest.raises(openai.BadRequestError, match="Web addresses are not fetched"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": [image]}])


def test_the_models_are_listed_and_no_other_answers(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError, match="gpt-5"):
        client.chat.completions.create(model="gpt-5", messages=user("what?"))


def test_reasoning_comes_beside_the_answer(server: Server, client: openai.OpenAI) -> None:
    wanted = server.engine.query(png(), "why", reasoning=True, settings={"max_tokens": 8})
    found = client.chat.completions.create(
        model=MODEL, messages=user("why", png()), max_tokens=8, extra_body={"reasoning": True}
    )
    assert found.choices[0].message.model_dump()["reasoning"] == wanted["reasoning"]["text"]


def test_a_failure_in_mid_stream_is_raised_by_the_client() -> None:
    with (
        Engine(engines.tiny_model(), engines.FlakyDevice("decode", 1)) as engine,
        serving(engine, Meter()) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        stream = client.chat.completions.create(model=MODEL, messages=user("go on"), stream=True)
        with pytest.raises(openai.APIError, match="The request failed"):
            list(stream)


def test_a_stream_that_is_left_early_ends_its_request() -> None:
    meter = Meter()
    cancelled = 'photon_api_requests_total{outcome="cancelled",task="query"}'
    with (
        Engine(engines.tiny_model(), DeferredDevice(0), observers=[meter], threaded=False) as engine,
        serving(engine, meter) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        stream = client.chat.completions.create(model=MODEL, messages=user("what?"), stream=True)
        next(iter(stream))
        stream.close()
        wait_until(lambda: running.count(cancelled) == 1)
        engine.run_until_idle()
        assert engine.stats()["steps"] == 0

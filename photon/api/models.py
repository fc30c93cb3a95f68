"""Which model answers: GET /v1/models, and the `model` field of every request."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.exceptions import HTTPException

from photon import Engine


def model_routes(engine: Engine, created_s: int) -> APIRouter:
    """The list of the one model that is served, in OpenAI's format."""
    routes = APIRouter(tags=["Models"])
    model = {"id": engine.model.config.name, "object": "model", "created": created_s, "owned_by": "local"}

    @routes.get("/models")
    async def models() -> dict[str, Any]:
        """The model that is served."""
        return {"object": "list", "data": [model]}

    @routes.get("/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        """The same, by its name."""
        check_model(engine, name)
        return model

    return routes


def check_model(engine: Engine, name: str | None) -> None:
    """Refuse to answer in another model's name. Raises HTTPException."""
    served = engine.model.config.name
    if name is not None and name != served:
        raise HTTPException(404, f"There is no model {name[:80]!r} here; leave model out or use {served!r}.")

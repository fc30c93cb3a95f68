"""Photon Workbench's engine: pipelined decoding for Moondream 2.

    from photon import Engine, EngineConfig, load_model, open_device

    with Engine(load_model("assets/tiny"), open_device("cpu"), EngineConfig(depth=2)) as engine:
        engine.point("scene.png", "red circle")

Read `pipeline.py` first, then `engine.py`.
"""

from photon.config import EngineConfig
from photon.device import open_device
from photon.engine import Engine
from photon.handle import Handle, RequestMetrics
from photon.model.weights import load_model
from photon.sequence import FinishReason, Request

__all__ = [
    "Engine",
    "EngineConfig",
    "FinishReason",
    "Handle",
    "Request",
    "RequestMetrics",
    "load_model",
    "open_device",
]

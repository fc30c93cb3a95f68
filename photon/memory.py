"""Memory: what a model takes, what is free, and how many KV pages fit into what is left.

    free = weights + work + KV pages + rest   weights: every parameter in the dtype it is loaded in
                                              work: activations, adapters, buffers; an estimate

Asked before anything is loaded, so that a model that does not fit is one sentence and not a killed process.
"""

from __future__ import annotations

from photon.config import EngineConfig
from photon.device.base import Device
from photon.errors import DeviceError
from photon.model.config import TextConfig
from photon.model.weights import Model

MAX_POOL_BYTES = 8 << 30
"""The largest KV pool that is sized automatically."""

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_USABLE_PERCENT = 90
"""Of what is free; the rest is for whoever else needs some later."""
_MIN_WORK_BYTES = 256 << 20
_WEIGHTS_PER_WORK = {"cpu": 5, "cuda": 2}
"""Measured at full size in bfloat16, beside weights of 3.9 GB: on a CPU 0.6 GB for one crop, and 13 take some
more; on an H200 1.8 GB at 8 rows, with what graphs and torch's allocator keep."""


def choose_dtype(name: str, device: Device) -> str:
    """The torch name of `name`, where "auto" is bfloat16 on CUDA and float32 elsewhere.

    In float32 the tokens of a request do not depend on its company; in 16 bits roundings may.
    Raises DeviceError for a dtype that the device has no arithmetic for.
    """
    is_cuda = device.torch_device.startswith("cuda")
    if name == "auto":
        return "bfloat16" if is_cuda else "float32"
    if name == "float16" and not is_cuda:
        raise DeviceError(f"float16 needs a CUDA device; use bfloat16 or float32 on {device.name}.")
    return name


def pool_pages(model: Model, device: Device, config: EngineConfig, dtype: str) -> int:
    """KV pages of the engine's pool, which together with the model fits what is free on the device.

    Raises:
        DeviceError: not even one request of full context fits; one sentence with both numbers.
    """
    text = model.config.text
    page_bytes, per_request = kv_page_bytes(text, config.page_size, dtype), pages_of(text, config.page_size)
    wanted = _wanted_pages(text, config, page_bytes)
    free_bytes = device.free_bytes()
    if free_bytes is None:
        return max(1, wanted)
    weights_bytes = _weights_bytes(model, dtype)
    share = _WEIGHTS_PER_WORK["cuda" if device.torch_device.startswith("cuda") else "cpu"]
    taken_bytes = weights_bytes + max(_MIN_WORK_BYTES, weights_bytes // share)
    least = config.num_pages or min(wanted, per_request)
    fitting = (free_bytes * _USABLE_PERCENT // 100 - taken_bytes) // page_bytes
    if fitting < max(1, least):
        needed_bytes = taken_bytes + max(1, least) * page_bytes
        remedy = "close other programs" + (", or load it in bfloat16" if dtype == "float32" else "")
        raise DeviceError(
            f"{model.config.name} in {dtype} needs about {_gb(needed_bytes)} on {device.name} "
            f"(weights {_gb(weights_bytes)}), but only {_gb(free_bytes)} are free; {remedy}."
        )
    return max(1, min(wanted, fitting))


def engine_bytes(model: Model, config: EngineConfig, dtype: str) -> int:
    """Weights and KV pages of an engine, where enough is free."""
    page_bytes = kv_page_bytes(model.config.text, config.page_size, dtype)
    return _weights_bytes(model, dtype) + _wanted_pages(model.config.text, config, page_bytes) * page_bytes


def _weights_bytes(model: Model, dtype: str) -> int:
    return model.checkpoint.num_parameters * _ITEM_BYTES[dtype]


def _wanted_pages(text: TextConfig, config: EngineConfig, page_bytes: int) -> int:
    per_request = pages_of(text, config.page_size)
    return config.num_pages or min(config.max_batch_size * per_request, MAX_POOL_BYTES // page_bytes)


def pages_of(text: TextConfig, page_size: int) -> int:
    """Pages of one request that fills the context."""
    return -(-text.max_context // page_size)


def kv_page_bytes(text: TextConfig, page_size: int, dtype: str) -> int:
    """Keys and values of one page in all layers."""
    return text.n_layers * 2 * text.dim * _ITEM_BYTES[dtype] * page_size


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"

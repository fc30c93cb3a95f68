"""The cuda device (in work)."""

from __future__ import annotations

from typing import Any


def is_available() -> bool:
    """Whether this torch build has CUDA and sees a card."""
    import torch

    return torch.cuda.is_available()


class CudaDevice:
    def __init__(self, name: str = "cuda") -> None:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any: ...

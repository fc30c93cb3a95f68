"""The whole model as one module tree; state_dict keys are the reference's, without 'model.'."""

from __future__ import annotations

from torch import nn

from photon.model.config import ModelConfig
from photon.model.region import Region
from photon.model.text import Text
from photon.model.vision import Vision


class Moondream(nn.Module):
    """Vision encoder, text decoder, region heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.vision = Vision(config.vision)
        self.text = Text(config.text)
        self.region = Region(config.region)

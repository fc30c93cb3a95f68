"""A whole request in one pass, without pages, slots or steps: what the engine's tokens are held against.

Teacher-forced: the answer is given, and what comes back is what the model would have said at each of its
positions. So one answer that parts from another at a near-tie is still comparable behind it.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from photon.decode_forward import typed_embeddings
from photon.model.layers import rotary_table, rotate
from photon.model.moondream import Moondream
from photon.skills.base import Token


@torch.inference_mode()
def answer_logits(model: Moondream, image: Any, prompt: Items[Token], answer: Items[Token]) -> Tensor:
    """(N, V) float32: the logits from which each of the answer's N tokens was to be chosen.

    image: an EncodedImage, or None. Source: engine_facts 1.4 and 1.5.
    """
    text, device = model.config.text, model.text.wte.device
    fed = [*prompt, *answer[:-1]]
    ids = torch.tensor([[token.id for token in fed]], device=device)
    values = torch.tensor([[(token.x, token.y) for token in fed]], device=device)
    head = [model.text.embed(torch.tensor([[model.config.tokenizer.bos_id]], device=device))]
    if image is not None:
        head.append(model.vision.embed(torch.tensor(image.pixels, device=device), (image.tiling,)))
    x = torch.cat((*head, typed_embeddings(model, ids, values[..., :1], values)), dim=1)  # (1, T, D)
    length, prefix = x.shape[1], x.shape[1] - len(fed)
    turns = rotary_table(text.rotary_dim, length).to(device)
    allowed = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    allowed[:prefix, :prefix] = True  # both ways inside the image; without one, it is BOS alone

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(rotate(q, turns), rotate(k, turns), v, attn_mask=allowed)

    for block in model.text.blocks:
        x = block(x, attend)
    return model.text.logits(x[0, -len(answer) :]).float()

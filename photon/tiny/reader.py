"""Greedy batch decoding with a plain KV cache: what evaluation uses instead of the engine.

Rows are prompts; several may read the same image. L layers, R rows, C cache positions, K head width.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from photon.model.config import ModelConfig
from photon.model.layers import rotary_table, rotate
from photon.model.moondream import Moondream
from photon.tiny.data import Encoder
from photon.tiny.forward import attend, embed
from photon.tiny.prompts import Ask

Box = tuple[float, ...]
"""(x, y) of a point, or (x, y, w, h) of a box, in 0..1."""

Answer = str | list[Box]


def load(folder: Path) -> tuple[Moondream, Tokenizer]:
    """The exported model in float32."""
    config = ModelConfig.from_dict(json.loads((folder / "config.json").read_text()))
    model = Moondream(config)
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({n.removeprefix("model."): t.float() for n, t in weights.items()})
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


class Reader:
    """Answers asks about images, many at a time."""

    def __init__(self, model: Moondream, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.encoder = Encoder(tokenizer, model.config.tokenizer)
        text = model.config.text
        self.table = rotary_table(text.rotary_dim, text.max_context)

    @torch.inference_mode()
    def see(self, crops: Tensor, tilings: Sequence[tuple[int, int]]) -> Tensor:
        """Crops of B images, one after the other -> embeddings (B, 64, D)."""
        return embed(self.model.vision, crops, tilings)[0]

    @torch.inference_mode()
    def answer(self, images: Tensor, asks: Sequence[tuple[int, Ask]], limit: int = 64) -> list[Answer]:
        """Answer (image number, ask) pairs: a text for query and caption, a list for point and detect."""
        answers: list[Answer] = [""] * len(asks)
        for spatial in (False, True):
            rows = [i for i, (_, ask) in enumerate(asks) if (ask.skill in ("point", "detect")) == spatial]
            for chunk in (rows[i : i + 64] for i in range(0, len(rows), 64)):
                session = Session(self, images, [asks[i] for i in chunk], limit)
                found = session.spatial() if spatial else session.text()
                for i, answer in zip(chunk, found, strict=True):
                    answers[i] = answer
        return answers


class Session:
    """One batch of prompts from prefill to the last end of text."""

    def __init__(self, reader: Reader, images: Tensor, asks: list[tuple[int, Ask]], limit: int) -> None:
        self.reader, self.model, self.limit, self.asks = reader, reader.model, limit, asks
        self.config = self.model.config.tokenizer
        prompts = [reader.encoder.prompt_ids(ask) for _, ask in asks]
        longest = max(map(len, prompts))
        ids = torch.tensor([p + [0] * (longest - len(p)) for p in prompts])
        self.prefix = images.shape[1] + 1
        used, row_of = torch.tensor([i for i, _ in asks]).unique(return_inverse=True)
        known = self._read_images(images[used].float())[:, :, row_of]
        self.cache = self._room(len(asks), self.prefix + longest + limit)
        self.cache[..., : self.prefix, :] = known
        position = self.prefix + torch.arange(longest).expand(len(asks), -1)
        states = self._forward(self.model.text.embed(ids), position)
        lengths = torch.tensor([len(p) for p in prompts])
        self.length = self.prefix + lengths
        self.hidden = states[torch.arange(len(asks)), lengths - 1]

    def _room(self, rows: int, length: int) -> Tensor:
        """An empty cache (L, 2, R, H, C, K)."""
        text = self.model.config.text
        return torch.zeros(text.n_layers, 2, rows, text.n_heads, length, text.head_dim)

    def _read_images(self, images: Tensor) -> Tensor:
        """Keys and values of BOS and each image: (L, 2, B, H, P, K)."""
        bos = self.model.text.wte[self.config.bos_id].expand(len(images), 1, -1)
        self.cache = self._room(len(images), self.prefix)
        self._forward(torch.cat((bos, images), dim=1), torch.arange(self.prefix).expand(len(images), -1))
        return self.cache

    def _forward(self, x: Tensor, position: Tensor) -> Tensor:
        """Run tokens (R, t, D) at their positions (R, t), filling the cache."""
        turns = self.reader.table[position][:, None]
        seen = torch.arange(self.cache.shape[4])
        allowed = (seen <= position[..., None]) | ((seen < self.prefix) & (position[..., None] < self.prefix))
        bias = torch.zeros(allowed.shape).masked_fill_(~allowed, -1e9)[:, None]
        rows = torch.arange(x.shape[0])[:, None]
        for block, cache in zip(self.model.text.blocks, self.cache, strict=True):

            def attention(q: Tensor, k: Tensor, v: Tensor, cache: Tensor = cache) -> Tensor:
                cache[0][rows, :, position] = rotate(k, turns).transpose(1, 2)
                cache[1][rows, :, position] = v.transpose(1, 2)
                return attend(rotate(q, turns), cache[0], cache[1], bias)

            x = block(x, attention)
        return x

    def _feed(self, embedding: Tensor) -> None:
        """Append one token (R, D) to every row."""
        self.hidden = self._forward(embedding[:, None], self.length[:, None])[:, 0]
        self.length = self.length + 1

    def text(self) -> list[Answer]:
        """Token by token until every row has ended."""
        out: list[list[int]] = [[] for _ in self.asks]
        alive = torch.ones(len(self.asks), dtype=torch.bool)
        for _ in range(self.limit):
            token = self.model.text.logits(self.hidden).argmax(-1)
            alive &= token != self.config.eos_id
            if not alive.any():
                break
            for row in alive.nonzero().flatten().tolist():
                out[row].append(int(token[row]))
            self._feed(self.model.text.embed(token))
        return [self.reader.tokenizer.decode(ids) for ids in out]

    def spatial(self) -> list[Answer]:
        """Object by object until every row has ended; boxes for detect, points for point."""
        region, sized = self.model.region, torch.tensor([a.skill == "detect" for _, a in self.asks])
        out: list[list[Box]] = [[] for _ in self.asks]
        alive = torch.ones(len(self.asks), dtype=torch.bool)
        for _ in range(self.limit // 3):
            logits = self.model.text.logits(self.hidden)
            alive &= logits[:, self.config.coord_id] > logits[:, self.config.eos_id]
            if not alive.any():
                break
            x = region.decode_coord(self.hidden)
            self._feed(region.encode_coord(x))
            y = region.decode_coord(self.hidden)
            self._feed(region.encode_coord(y))
            size = region.decode_size(self.hidden)
            hidden, length = self.hidden, self.length
            self._feed(region.encode_size(size))
            self.hidden = torch.where(sized[:, None], self.hidden, hidden)
            self.length = torch.where(sized, self.length, length)
            for row in alive.nonzero().flatten().tolist():
                values = (x[row, 0], y[row, 0], *(size[row] if sized[row] else ()))
                out[row].append(tuple(map(float, values)))
        return list(out)

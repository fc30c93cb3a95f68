"""Moondream 2: vision encoder, text decoder and region heads, as plain modules.

Parameter names are the reference's new checkpoint layout, so `state_dict()` keys need no mapping.
These modules hold weights and arithmetic only. They know nothing of batches in flight, pages or slots:
the engine's `runner.py` strings them together over a paged KV cache, and `photon.tiny.train` over a
packed training sequence.

Dimension key of the shape comments:
  B rows of a batch      T query tokens       L key positions     P pages per row
  D text width           H attention heads    K head width        F feed-forward width
  N crops                S crop side in px    E vision width      G patches per side (27 for md2)
  V vocabulary           R rank of an adapter
"""

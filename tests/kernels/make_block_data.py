# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/blocks/*.bin with PyPI's `gguf`: random blocks of each format, and behind them
the float32 that gguf dequantizes them to. Run it with the tests' virtual environment."""

import pathlib

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

ROWS = 3
COLS = 512
FORMATS = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "MXFP4", "Q5_0", "Q5_1", "Q3_K", "Q5_K", "IQ4_NL",
           "IQ4_XS", "Q2_K")
# Where a block's float16 fields are; these hold ordinary numbers, everything else random bits.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208], "MXFP4": [],
          "Q5_0": [0], "Q5_1": [0, 2], "Q3_K": [108], "Q5_K": [0, 2], "IQ4_NL": [0], "IQ4_XS": [0],
          "Q2_K": [80, 82]}

folder = pathlib.Path(__file__).resolve().parent.parent / "data" / "blocks"
random = np.random.default_rng(11)
for name in FORMATS:
    kind = GGMLQuantizationType[name]
    width, size = GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (ROWS * COLS // width, size), dtype=np.uint8)
    for offset in HALVES[name]:
        values = random.normal(0, 0.02, len(blocks)).astype(np.float16)
        blocks[:, offset : offset + 2] = values.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:, 0] = random.integers(118, 130, len(blocks))
        blocks[:4, 0] = [0, 1, 2, 252]  # denormal scales, and the largest
    weights = quants.dequantize(blocks.reshape(ROWS, -1), kind).astype(np.float32)
    assert weights.shape == (ROWS, COLS)
    (folder / f"{name.lower()}.bin").write_bytes(blocks.tobytes() + weights.tobytes())

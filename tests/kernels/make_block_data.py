# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/blocks/*.bin with PyPI's `gguf`: random blocks of each format, and behind them
the float32 that gguf dequantizes them to; llama.cpp's library (tests/quant/llama_library.py) where
gguf lacks the format. Run it with the tests' virtual environment."""

import pathlib
import sys

import numpy as np
from gguf import quants
from gguf.constants import GGMLQuantizationType

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "quant"))
# pylint: disable=wrong-import-position
from gguf_blocks import FORMATS, put_halves, random_bits
from llama_library import Llama, find_library

# Rows and columns of the formats in the order in which the random numbers are drawn.
SIZES = {name: (3, 512) for name in ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "MXFP4", "Q5_0", "Q5_1",
                                     "Q3_K", "Q5_K", "IQ4_NL", "IQ4_XS", "Q2_K")}
SIZES.update((name, (2, 256)) for name in FORMATS if name not in SIZES)


def dequantize(name, blocks):
    if name in ("Q1_0", "Q2_0"):
        return Llama(find_library()).dequantize(FORMATS[name].number, blocks)
    return quants.dequantize(blocks, GGMLQuantizationType[name])


def main():
    random = np.random.default_rng(11)
    for name, (rows, cols) in SIZES.items():
        blocks = random_bits(random, name, rows * cols // FORMATS[name].values)
        for offset in FORMATS[name].halves:
            values = random.normal(0, 0.02, len(blocks)).astype(np.float16)
            put_halves(name, blocks, offset, values.view("<u2"))
        if name == "MXFP4":
            blocks[:, 0] = random.integers(118, 130, len(blocks))
            blocks[:4, 0] = [0, 1, 2, 252]  # denormal scales, and the largest
        if name == "NVFP4":
            blocks[0, :4] = [0, 7, 126, 127]  # denormal scales, the largest, and the one that is 0
        weights = dequantize(name, blocks).astype(np.float32)
        assert weights.size == rows * cols and np.isfinite(weights).all()
        path = TESTS / "data" / "blocks" / f"{name.lower()}.bin"
        path.write_bytes(blocks.tobytes() + weights.tobytes())


if __name__ == "__main__":
    main()

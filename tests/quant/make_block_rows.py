# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/block_rows: rows, importances, and what llama.cpp's quantizers make of them.

    make_block_rows.py [OUT]

rows.bin has ROWS rows of 256 float32, importance.bin 256 of them, and each TYPE.bin the blocks that
`ggml_quantize_chunk` writes with these importances. Needs llama.cpp's library (llama_library.py).
"""

import pathlib
import sys

import numpy as np

from gguf_blocks import FORMATS
from llama_library import Llama, find_library

ROWS, COLS = 12, 256
TYPES = ("Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0", "IQ2_XXS",
         "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS")


def make_rows(random):
    """Plain, with few large values, with a mean, of rising size, and with zeros."""
    rows = random.normal(0, 0.02, (ROWS, COLS))
    rows[3:5] = random.standard_t(3, (2, COLS)) * 0.02
    rows[5:7] += 0.03
    rows[7:9] *= np.linspace(0.1, 2, COLS)
    rows[9, ::3] = 0
    rows[10] *= np.repeat(random.uniform(0.1, 3, COLS // 16), 16)
    return rows.astype(np.float32)


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                       pathlib.Path(__file__).resolve().parents[1] / "data" / "block_rows")
    out.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(11)
    rows = make_rows(random)
    importance = np.exp(random.normal(0, 1, COLS)).astype(np.float32)
    (out / "rows.bin").write_bytes(rows.tobytes())
    (out / "importance.bin").write_bytes(importance.tobytes())
    llama = Llama(find_library())
    for name in TYPES:
        blocks = llama.quantize(FORMATS[name].number, rows, importance)
        (out / f"{name.lower()}.bin").write_bytes(blocks.tobytes())


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The blocks of GGUF's formats: their sizes, where their float16 scales lie, and random ones.

Numbers and sizes are those of ggml.h; the tests compare them with PyPI's `gguf` and with llama.cpp.
"""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Format:
    number: int  # ggml's
    values: int
    block_bytes: int
    halves: tuple = ()  # the first byte of each float16
    size: float = 0  # of the largest value, as a multiple of the first float16


FORMATS = {
    "Q4_0": Format(2, 32, 18, (0,), 8), "Q4_1": Format(3, 32, 20, (0, 2), 16),
    "Q5_0": Format(6, 32, 22, (0,), 16), "Q5_1": Format(7, 32, 24, (0, 2), 32),
    "Q8_0": Format(8, 32, 34, (0,), 128), "Q2_K": Format(10, 256, 84, (80, 82), 40),
    "Q3_K": Format(11, 256, 110, (108,), 100), "Q4_K": Format(12, 256, 144, (0, 2), 600),
    "Q5_K": Format(13, 256, 176, (0, 2), 1200), "Q6_K": Format(14, 256, 210, (208,), 2500),
    "IQ2_XXS": Format(16, 256, 66, (0,), 167), "IQ2_XS": Format(17, 256, 74, (0,), 167),
    "IQ3_XXS": Format(18, 256, 98, (0,), 480), "IQ1_S": Format(19, 256, 50, (0,), 17),
    "IQ4_NL": Format(20, 32, 18, (0,), 80), "IQ3_S": Format(21, 256, 110, (0,), 465),
    "IQ2_S": Format(22, 256, 82, (0,), 167), "IQ4_XS": Format(23, 256, 136, (0,), 1500),
    # Its float16 lies in the high nibbles of these bytes, lowest nibble first (put_halves).
    "IQ1_M": Format(29, 256, 56, (49,), 17),
    "TQ1_0": Format(34, 256, 54, (52,), 1), "TQ2_0": Format(35, 256, 66, (64,), 2),
    "MXFP4": Format(39, 32, 17), "NVFP4": Format(40, 64, 36),
    "Q1_0": Format(41, 128, 18, (0,), 1), "Q2_0": Format(42, 64, 18, (0,), 2)}


def put_halves(name, blocks, offset, halves):
    """Writes a float16's bits, one a block, into the field that begins at byte `offset`."""
    halves = halves.astype("<u2")
    if name != "IQ1_M":
        blocks[:, offset:offset + 2] = halves.view(np.uint8).reshape(-1, 2)
        return
    for i in range(4):
        nibble = (halves >> (4 * i) & 15).astype(np.uint8)
        blocks[:, offset + 2 * i] = blocks[:, offset + 2 * i] & 15 | nibble << 4


def random_bits(random, name, count):
    return random.integers(0, 256, (count, FORMATS[name].block_bytes), dtype=np.uint8)


def random_blocks(random, name, count, scale=0.1):
    """Valid ones of random bits, whose values are at most about `scale`."""
    blocks, form = random_bits(random, name, count), FORMATS[name]
    for offset in form.halves:
        values = random.normal(scale, scale / 5, count) / form.size
        put_halves(name, blocks, offset, values.astype("<f2").view("<u2"))
    exponent = np.log2(scale / 12)  # of the scale under which the largest value is `scale`
    if name == "MXFP4":
        blocks[:, 0] = np.round(exponent + 128 - random.integers(0, 3, count))
    if name == "NVFP4":
        blocks[:, :4] = np.round((exponent + 8 - random.random((count, 4))) * 8)
    return blocks

# SPDX-License-Identifier: Apache-2.0
"""The block types that make_moe_gguf.py draws: random bits under scales that give a deviation."""

import enum
import re

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type


class OwnType(enum.IntEnum):
    """Numbers the types that ggml has and PyPI's `gguf` has not."""
    Q2_0 = 42


# Types whose only scale is a float16: where it lies in a block, and the deviation of what the random
# bits of a block mean under a scale of 1.
SCALED = {Type.Q4_0: (0, 4.64), Type.Q5_0: (0, 9.25), Type.Q8_0: (0, 73.9), Type.Q3_K: (108, 43.4),
          Type.Q6_K: (208, 1367), Type.IQ2_XXS: (0, 53.3), Type.IQ2_XS: (0, 56.0),
          Type.IQ2_S: (0, 56.4), Type.IQ3_XXS: (0, 142.0), Type.IQ3_S: (0, 140.1),
          Type.IQ1_S: (0, 7.22), Type.IQ4_NL: (0, 67.4), Type.IQ4_XS: (0, 1251),
          Type.TQ1_0: (52, 0.817), Type.TQ2_0: (64, 0.817), Type.Q1_0: (0, 1.0),
          OwnType.Q2_0: (0, 1.224)}
# Types with a float16 for minimums behind the one for scales: where the two lie, the deviation, and
# the middle of the numbers (minimums of *_K are subtracted).
WITH_MINIMUMS = {Type.Q4_1: (0, 4.61, -7.5), Type.Q5_1: (0, 9.24, -15.5), Type.Q2_K: (80, 13.9, 1.5),
                 Type.Q4_K: (0, 258, 7.5), Type.Q5_K: (0, 527, 15.5)}
NVFP4_DEVIATION = 3.39  # of NVFP4 under scales of 0.5 to 1.875
DRAWN = (*SCALED, *WITH_MINIMUMS, Type.IQ1_M, Type.MXFP4, Type.NVFP4)
# The matrices whose scale llama.cpp reads from a tensor of its own.
HAS_SCALE = re.compile(r"(^output|attn_(q|k|v|output|qkv|gate)|ffn_(gate|up|down)(_shexp|_exps)?|"
                       r"ssm_(in|out|alpha|beta))\.weight$")


def block_size(kind):
    """Returns the values and the bytes of a block."""
    return (64, 18) if kind == OwnType.Q2_0 else gguf.GGML_QUANT_SIZES[kind]


def has_scale(name, kind):
    return kind == Type.NVFP4 and HAS_SCALE.search(name) is not None


def put_halves(blocks, offset, values):
    blocks[:, offset:offset + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)


def put_nibbles(blocks, values):
    """Puts a float16 into the high nibbles of the last four words, as IQ1_M has it."""
    bits = values.astype("<f2").view("<u2")
    for i in range(4):
        nibble = (bits >> (4 * i) & 15).astype(np.uint8)
        blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | nibble << 4


def fill_blocks(random, blocks, kind, deviation):
    """Overwrites what scales random blocks such that weights have mean 0 and this deviation. NVFP4 for
    which the deviation is None has scales that the matrix's own makes it of."""
    if kind == Type.NVFP4:
        low = 48 if deviation is None else 48 + np.log2(deviation / NVFP4_DEVIATION) * 8
        scales = np.rint(low + random.integers(0, 16, (len(blocks), 4)))
        blocks[:, :4] = np.clip(scales, 1, 126)
        return
    scales = random.uniform(0.8, 1.2, len(blocks)).astype(np.float32) * np.float32(deviation)
    signs = random.choice(np.float32([-1, 1]), len(blocks))  # for codes that are off centre
    if kind == Type.TQ2_0:  # the numbers are 0 to 2
        ternary = blocks[:, :64] % 81
        blocks[:, :64] = sum((ternary // 3**i % 3) << (2 * i) for i in range(4))
    if kind in SCALED:
        offset, divisor = SCALED[kind]
        put_halves(blocks, offset, scales * signs / divisor)
    elif kind in WITH_MINIMUMS:
        offset, divisor, middle = WITH_MINIMUMS[kind]
        put_halves(blocks, offset, scales / divisor)
        put_halves(blocks, offset + 2, scales / divisor * middle)
    elif kind == Type.IQ1_M:
        put_nibbles(blocks, scales * signs / 7.18)
    elif kind == Type.MXFP4:
        # Powers of two on both sides of the deviation, by turns at random.
        exponent = np.log2(deviation / 3.28) + random.uniform(-0.5, 0.5, len(blocks))
        blocks[:, 0] = np.clip(np.rint(exponent + 127), 1, 254).astype(np.uint8)
    else:
        raise ValueError(f"no random blocks of {kind.name}")

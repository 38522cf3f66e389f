# SPDX-License-Identifier: Apache-2.0
"""GGUF's block formats against PyPI's `gguf`: the same bits from the same blocks.

    gguf_oracle_test.py DEQUANTIZE_BYTES [unittest arguments]

DEQUANTIZE_BYTES is the program built from dequantize_bytes.cc. Every pattern of a half stands once
in each field that is one, infinities and NaNs included; all else is random. A NaN must be a NaN,
whatever its payload. Ends with 77 (skipped) where the oracle packages are not installed.
"""

import os
import subprocess
import sys
import unittest
import warnings

try:
    import numpy as np
    from gguf import GGMLQuantizationType
    from gguf.quants import GGML_QUANT_SIZES, dequantize, quantize
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PROGRAM = os.path.abspath(sys.argv[1])
# Where halves lie in a block; of MXFP4 the exponent's byte takes all its patterns at random.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0],
          "IQ4_XS": [0], "MXFP4": []}
NUM_BLOCKS = 1 << 16


def run(*arguments, data=b""):
    result = subprocess.run([PROGRAM, *arguments], input=data, capture_output=True, timeout=300,
                            check=False)
    if result.returncode != 0:
        raise AssertionError(f"{arguments}: {result.stderr.decode()}")
    return result.stdout


def formats():
    lines = [line.split() for line in run().decode().splitlines()]
    return {name: [int(number), int(size), int(bytes_)]
            for number, name, size, bytes_ in lines}


def blocks_of(name, block_bytes, seed):
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (NUM_BLOCKS, block_bytes), dtype=np.uint8)
    for offset in HALVES[name]:
        order = random.permutation(NUM_BLOCKS).astype("<u2")
        blocks[:, offset:offset + 2] = order.view(np.uint8).reshape(-1, 2)
    return blocks


class DequantizeTest(unittest.TestCase):
    def test_all_formats_are_here(self):
        found = formats()
        self.assertEqual(set(found), set(HALVES))
        for name, (number, size, block_bytes) in found.items():
            kind = GGMLQuantizationType[name]
            self.assertEqual((kind.value, *GGML_QUANT_SIZES[kind]), (number, size, block_bytes))

    def compare(self, name, number, blocks):
        expected = dequantize(blocks, GGMLQuantizationType[name]).ravel()
        found = np.frombuffer(run(str(number), data=blocks.tobytes()), np.float32)
        self.assertEqual(expected.shape, found.shape)
        is_nan = np.isnan(expected)
        same = (expected.view(np.uint32) == found.view(np.uint32)) | (is_nan & np.isnan(found))
        where = np.flatnonzero(~same)
        self.assertEqual(len(where), 0, f"{name}: {len(where)} differ, first {where[:3]}: "
                         f"{expected[where[:3]]} {found[where[:3]]}")
        return int(is_nan.sum())

    def test_same_bits(self):
        warnings.simplefilter("ignore")
        for seed, (name, (number, _, block_bytes)) in enumerate(sorted(formats().items())):
            with self.subTest(format=name):
                num_nan = self.compare(name, number, blocks_of(name, block_bytes, seed))
                self.assertEqual(num_nan > 0, bool(HALVES[name]))

    def test_quantized_rows(self):
        rows = np.random.default_rng(5).normal(0, 0.3, (64, 256)).astype(np.float32)
        for name, (number, size, block_bytes) in formats().items():
            kind = GGMLQuantizationType[name]
            try:
                blocks = quantize(rows, kind)
            except NotImplementedError:
                continue
            with self.subTest(format=name):
                self.compare(name, number, blocks.reshape(-1, block_bytes))
                self.assertEqual(blocks.size // block_bytes * size, rows.size)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)

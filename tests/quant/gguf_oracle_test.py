# SPDX-License-Identifier: Apache-2.0
"""GGUF's block formats against PyPI's `gguf`: the same bits from the same blocks.

    gguf_oracle_test.py DEQUANTIZE_BYTES [unittest arguments]

DEQUANTIZE_BYTES is the program built from dequantize_bytes.cc. `gguf` lacks Q1_0 and Q2_0
(llama_oracle_test.py has them). Ends with 77 (skipped) where the oracle packages are not installed.
"""

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

from dequantize import Program, SameBits, hostile_blocks
from gguf_blocks import FORMATS

PROGRAM = Program(sys.argv[1])
FOUND = PROGRAM.formats()
KNOWN = {name: FOUND[name] for name in FOUND if name not in ("Q1_0", "Q2_0")}


class DequantizeTest(SameBits):
    def test_all_formats_are_here(self):
        self.assertEqual(set(FOUND), set(FORMATS))
        for name, (number, size, block_bytes) in KNOWN.items():
            kind = GGMLQuantizationType[name]
            self.assertEqual((kind.value, *GGML_QUANT_SIZES[kind]), (number, size, block_bytes))

    def compare_with_package(self, name, blocks):
        expected = dequantize(blocks, GGMLQuantizationType[name])
        return self.compare(expected, PROGRAM.dequantize(KNOWN[name][0], blocks), name)

    def test_same_bits(self):
        warnings.simplefilter("ignore")
        for seed, name in enumerate(sorted(KNOWN)):
            with self.subTest(format=name):
                num_nan = self.compare_with_package(name, hostile_blocks(name, seed))
                self.assertEqual(num_nan > 0, bool(FORMATS[name].halves))

    def test_quantized_rows(self):
        rows = np.random.default_rng(5).normal(0, 0.3, (64, 256)).astype(np.float32)
        for name, (_, size, block_bytes) in KNOWN.items():
            kind = GGMLQuantizationType[name]
            try:
                blocks = quantize(rows, kind).reshape(-1, block_bytes)
            except NotImplementedError:
                continue
            with self.subTest(format=name):
                self.compare_with_package(name, blocks)
                self.assertEqual(len(blocks) * size, rows.size)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)

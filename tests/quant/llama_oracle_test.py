# SPDX-License-Identifier: Apache-2.0
"""GGUF's block formats against llama.cpp's own `to_float`: the same bits from the same blocks.

    llama_oracle_test.py DEQUANTIZE_BYTES [unittest arguments]

DEQUANTIZE_BYTES is the program built from dequantize_bytes.cc. Blocks are random bits under every
pattern of a half, what llama.cpp's quantizers write, and those of tests/data/blocks. Ends with 77
(skipped) without llama.cpp's library (llama_library.py says how it is built).
"""

import pathlib
import sys
import unittest

try:
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from dequantize import Program, SameBits, hostile_blocks
from gguf_blocks import FORMATS
from llama_library import Llama, find_library

if find_library() is None:
    print("skipped: no libggml-base.so")
    sys.exit(77)

LLAMA = Llama(find_library())
PROGRAM = Program(sys.argv[1])
FOUND = PROGRAM.formats()
BLOCKS = pathlib.Path(__file__).resolve().parents[1] / "data" / "blocks"
PLAIN = {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"}


class LlamaTest(SameBits):
    def compare_with_llama(self, name, blocks):
        number = FORMATS[name].number
        return self.compare(LLAMA.dequantize(number, blocks), PROGRAM.dequantize(number, blocks),
                            name)

    def test_all_formats_that_it_reads(self):
        theirs = {}
        for number in range(43):
            traits = LLAMA.traits(number)
            if traits.to_float and traits.name.decode().upper() not in PLAIN:
                theirs[traits.name.decode().upper()] = (number, traits.values, traits.block_bytes)
        self.assertEqual(theirs, FOUND)
        self.assertEqual(theirs, {name: (form.number, form.values, form.block_bytes)
                                  for name, form in FORMATS.items()})

    def test_same_bits(self):
        for seed, name in enumerate(sorted(FORMATS)):
            with self.subTest(format=name):
                num_nan = self.compare_with_llama(name, hostile_blocks(name, seed))
                self.assertEqual(num_nan > 0, bool(FORMATS[name].halves))

    def test_quantized_rows(self):
        random = np.random.default_rng(5)
        rows = random.normal(0, 0.3, (16, 512)).astype(np.float32)
        importance = random.uniform(0.5, 2, 512)
        for name, form in FORMATS.items():
            with self.subTest(format=name):
                blocks = LLAMA.quantize(form.number, rows, importance)
                self.assertEqual(self.compare_with_llama(name, blocks), 0)
                error = PROGRAM.dequantize(form.number, blocks).reshape(rows.shape) - rows
                self.assertLess(float(np.std(error)), 0.9 * 0.3)  # and they mean the rows

    def test_recorded_blocks(self):
        files = sorted(BLOCKS.glob("*.bin"))
        self.assertEqual({path.stem.upper() for path in files}, set(FORMATS))
        for path in files:
            form = FORMATS[path.stem.upper()]
            with self.subTest(format=path.stem):
                data = np.frombuffer(path.read_bytes(), np.uint8)
                count, rest = divmod(len(data), form.block_bytes + 4 * form.values)
                self.assertEqual(rest, 0)
                blocks = data[:count * form.block_bytes].reshape(count, -1)
                recorded = data[count * form.block_bytes:].view(np.float32)
                self.compare(LLAMA.dequantize(form.number, blocks), recorded, path.stem)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)

# SPDX-License-Identifier: Apache-2.0
"""What the oracle tests of block formats share: the program built from dequantize_bytes.cc, and blocks
that hold every pattern of a float16."""

import os
import subprocess
import unittest

import numpy as np
from gguf_blocks import FORMATS, put_halves, random_bits

NUM_BLOCKS = 1 << 16


class Program:
    def __init__(self, path):
        self.path = os.path.abspath(path)

    def run(self, *arguments, data=b""):
        result = subprocess.run([self.path, *arguments], input=data, capture_output=True,
                                timeout=300, check=False)
        if result.returncode != 0:
            raise AssertionError(f"{arguments}: {result.stderr.decode()}")
        return result.stdout

    def formats(self):
        lines = [line.split() for line in self.run().decode().splitlines()]
        return {name: (int(number), int(size), int(bytes_))
                for number, name, size, bytes_ in lines}

    def dequantize(self, number, blocks):
        values = np.frombuffer(self.run(str(number), data=blocks.tobytes()), np.float32)
        return values.reshape(len(blocks), -1)


def hostile_blocks(name, seed):
    """Random bits; every pattern of a half stands once in each field that is one, infinities and
    NaNs included."""
    random = np.random.default_rng(seed)
    blocks = random_bits(random, name, NUM_BLOCKS)
    for offset in FORMATS[name].halves:
        put_halves(name, blocks, offset, random.permutation(NUM_BLOCKS))
    return blocks


class SameBits(unittest.TestCase):
    def compare(self, expected, found, message):
        """A NaN must be a NaN, whatever its payload. Returns how many there are."""
        self.assertEqual(expected.size, found.size, message)
        expected, found = expected.ravel(), found.ravel()
        is_nan = np.isnan(expected)
        same = (expected.view(np.uint32) == found.view(np.uint32)) | (is_nan & np.isnan(found))
        where = np.flatnonzero(~same)
        self.assertEqual(len(where), 0, f"{message}: {len(where)} differ, first {where[:3]}: "
                         f"{expected[where[:3]]} {found[where[:3]]}")
        return int(is_nan.sum())

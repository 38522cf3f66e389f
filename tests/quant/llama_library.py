# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's own library of block formats, ggml-base, through ctypes.

It is built once from the sources that bench/peers/compare.py unpacks, e.g. in
~/.cache/vitrine/peers:

    cmake -S llama_cpp_python-0.3.36/vendor/llama.cpp -B build-shared -DBUILD_SHARED_LIBS=ON \\
          -DLLAMA_CURL=OFF -DLLAMA_BUILD_COMMON=OFF -DCMAKE_BUILD_TYPE=Release
    cmake --build build-shared --target ggml-base

VITRINE_GGML may name a library that stands elsewhere.
"""

import ctypes
import os
import pathlib

import numpy as np

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitrine"
FLOATS = ctypes.POINTER(ctypes.c_float)


def find_library():
    """Its path, or None."""
    given = os.environ.get("VITRINE_GGML")
    if given:
        return given
    found = sorted(CACHE.glob("peers/build-shared*/bin/libggml-base.so"))
    return str(found[-1]) if found else None


class Traits(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("values", ctypes.c_int64),
                ("interleave", ctypes.c_int64), ("block_bytes", ctypes.c_size_t),
                ("is_quantized", ctypes.c_bool),
                ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, FLOATS, ctypes.c_int64)),
                ("from_float", ctypes.c_void_p)]


class Llama:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
        self.library.ggml_quantize_chunk.restype = ctypes.c_size_t
        self.library.ggml_quantize_chunk.argtypes = [
            ctypes.c_int, FLOATS, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64,
            FLOATS]

    def traits(self, number):
        return self.library.ggml_get_type_traits(number).contents

    def dequantize(self, number, blocks):
        """uint8 [blocks, bytes] to float32 [blocks, values]."""
        traits = self.traits(number)
        blocks = np.ascontiguousarray(blocks)
        values = np.empty((len(blocks), traits.values), np.float32)
        traits.to_float(blocks.ctypes.data, values.ctypes.data_as(FLOATS), values.size)
        return values

    def quantize(self, number, rows, importance=None):
        """float32 [rows, columns] to uint8 [blocks, bytes]; `importance`: of each column."""
        traits = self.traits(number)
        rows = np.ascontiguousarray(rows, np.float32)
        blocks = np.zeros((rows.size // traits.values, traits.block_bytes), np.uint8)
        weights = None if importance is None else (
            np.ascontiguousarray(importance, np.float32).ctypes.data_as(FLOATS))
        written = self.library.ggml_quantize_chunk(
            number, rows.ctypes.data_as(FLOATS), blocks.ctypes.data, 0, *rows.shape, weights)
        if written != blocks.size:
            raise AssertionError(f"type {number}: {written} bytes; expected {blocks.size}")
        return blocks

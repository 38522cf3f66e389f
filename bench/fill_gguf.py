# SPDX-License-Identifier: Apache-2.0
"""Gives a GGUF header random weights, on a machine that has torch and nothing of PyPI's `gguf` and
`numpy`: a file of many gigabytes is made where it is measured.

    make_moe_gguf.py 30b.header --shape 30b-a3b --type q4_0 --header     # here, 5 MB
    fill_gguf.py 30b.header 30b.gguf [--seed N]                          # there, 17 GB

Weights are drawn as make_moe_gguf.py draws them (Q4_0, Q8_0, F32), other numbers of one distribution;
on a GPU where there is one.
"""

import argparse
import ctypes
import math
import os
import pathlib
import shutil
import struct
import sys

import torch

ALIGNMENT = 32
PIECE_BYTES = 256 << 20
# Of ggml's types: values and bytes of a block, and the deviation of its bits under a scale of 1.
BLOCKS = {2: (32, 18, 4.64), 8: (32, 34, 73.9)}
F32 = 0
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


class Header:
    """Reads what stands before a GGUF file's tensors."""

    def __init__(self, data):
        self.data, self.at = data, 8
        if data[:4] != b"GGUF" or struct.unpack_from("<I", data, 4) != (3,):
            sys.exit("fill_gguf: expected a header that make_moe_gguf.py --header wrote")
        num_tensors, num_entries = self.take("<QQ")
        for _ in range(num_entries):
            self.string()
            self.skip_value(*self.take("<I"))
        self.tensors = [self.tensor() for _ in range(num_tensors)]

    def take(self, form):
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values

    def string(self):
        length, = self.take("<Q")
        if length > len(self.data) - self.at:
            raise struct.error("a string ends behind the file")
        self.at += length
        return self.data[self.at - length:self.at]

    def skip_value(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            of, count = self.take("<IQ")
            if count > len(self.data):
                raise struct.error("an array ends behind the file")
            for _ in range(count):
                self.skip_value(of)
        else:
            self.at += SIZES[kind]

    def tensor(self):
        """(name, extents with the columns first, type, offset)"""
        name = self.string().decode()
        extents = self.take("<%dQ" % self.take("<I"))
        return name, extents, *self.take("<IQ")


def write_tensor(file, values):
    values = values.cpu().contiguous()
    size = values.numel() * values.element_size()
    file.write((ctypes.c_char * size).from_address(values.data_ptr()))


def random_floats(count, deviation, mean, **where):
    return mean + deviation * torch.randn(count, **where)


def random_blocks(count, block_bytes, scale, **where):
    blocks = torch.randint(0, 256, (count, block_bytes), dtype=torch.uint8, **where)
    scales = (0.8 + 0.4 * torch.rand(count, **where)) * scale
    scales *= 2 * torch.randint(0, 2, (count,), **where) - 1
    blocks[:, :2] = scales.half().view(torch.uint8).view(-1, 2)
    return blocks


def fill(file, tensor, start, **where):
    name, extents, kind, offset = tensor
    count = math.prod(extents)
    file.seek(start + offset)
    deviation = (1.0 if name.startswith("token_embd") else
                 2 / extents[0]**0.5 if "ffn_gate_inp" in name or name.startswith("output.") else
                 1 / extents[0]**0.5)
    if kind == F32:
        is_norm = len(extents) == 1
        write_tensor(file, random_floats(count, 0.1 if is_norm else deviation, is_norm, **where))
        return
    values, block_bytes, spread = BLOCKS[kind]
    left, most = count // values, PIECE_BYTES // block_bytes
    while left > 0:
        write_tensor(file, random_blocks(min(left, most), block_bytes, deviation / spread, **where))
        left -= most


def stored_bytes(tensor):
    name, extents, kind, _ = tensor
    if kind != F32 and kind not in BLOCKS:
        sys.exit(f"fill_gguf: {name} has ggml's type {kind}; expected F32, Q4_0 or Q8_0")
    values, block_bytes, _ = (1, 4, 1) if kind == F32 else BLOCKS[kind]
    return math.prod(extents) // values * block_bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("header")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    where = {"device": device, "generator": torch.Generator(device).manual_seed(arguments.seed)}
    try:
        data = pathlib.Path(arguments.header).read_bytes()
        header = Header(data)
    except OSError as error:
        sys.exit(f"fill_gguf: {arguments.header}: {error.strerror}; expected a header")
    except (struct.error, KeyError, UnicodeDecodeError):
        sys.exit(f"fill_gguf: {arguments.header} ends early or is no header; make it again")
    start = -(-header.at // ALIGNMENT) * ALIGNMENT
    needed = max((start + tensor[3] + stored_bytes(tensor) for tensor in header.tensors), default=0)
    free = shutil.disk_usage(arguments.out.parent).free
    if needed + (64 << 20) > free:
        sys.exit(f"fill_gguf: {arguments.out} needs {needed / 1e9:.1f} GB and its disk has "
                 f"{free / 1e9:.1f} GB free; expected more, or a smaller shape")
    temporary = arguments.out.with_name(arguments.out.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data[:header.at])
            for tensor in header.tensors:
                fill(file, tensor, start, **where)
            file.seek(0, os.SEEK_END)
            size = -(-file.tell() // ALIGNMENT) * ALIGNMENT
            file.truncate(size)
        os.replace(temporary, arguments.out)
    finally:
        temporary.unlink(missing_ok=True)
    print(f"{arguments.out}: {size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()

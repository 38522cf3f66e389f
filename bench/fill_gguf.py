# SPDX-License-Identifier: Apache-2.0
"""Gives a GGUF header random weights, on a machine that has Python and nothing else: a file of many
gigabytes is made where it is measured, by all cores, as fast as the memory or the disk takes it.

    make_moe_gguf.py 30b.header --shape 30b-a3b --type q4_0 --header     # here, 5 MB
    fill_gguf.py 30b.header 30b.gguf [--seed N] [--zero-experts]         # there, 17 GB

Weights are drawn as make_moe_gguf.py draws them (Q4_0, Q8_0, F32), other numbers of one distribution: a
few megabytes of each kind, of which every tensor is made in pieces that begin at random places.
--zero-experts leaves the routed experts' weights as holes in the file, zeros that take neither time nor
room: routers choose as before, and each expert is read where it is chosen.
"""

import argparse
import math
import multiprocessing
import os
import pathlib
import random
import shutil
import struct
import sys

ALIGNMENT = 32
PIECE_BYTES = 16 << 20  # that one process writes at a time
POOL_BYTES = 8 << 20  # of random blocks of one kind
POOL_FLOATS = 1 << 17
SCALES = 4096  # different ones of a kind
# ggml's types, each with the values and bytes of a block, and the deviation of its bits under a
# scale of 1.
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


def random_blocks(generator, kind, deviation):
    """Blocks of random bits under scales of either sign, which stand in two bytes at the front."""
    _, block_bytes, spread = BLOCKS[kind]
    count = POOL_BYTES // block_bytes
    pool = bytearray(generator.randbytes(count * block_bytes))
    few = [generator.choice((-1, 1)) * generator.uniform(0.8, 1.2) * deviation / spread
           for _ in range(SCALES)]
    scales = b"".join(generator.choices([struct.pack("<e", scale) for scale in few], k=count))
    pool[0::block_bytes] = scales[0::2]
    pool[1::block_bytes] = scales[1::2]
    return bytes(pool)


def random_floats(generator, mean, deviation):
    return struct.pack(f"<{POOL_FLOATS}f",
                       *(generator.gauss(mean, deviation) for _ in range(POOL_FLOATS)))


def kind_of(tensor):
    """(ggml's type, mean, deviation)"""
    name, extents, kind, _ = tensor
    if kind == F32 and len(extents) == 1:
        # A state decays by exp(ssm_a ...): the one vector that may not be positive.
        return kind, -8.0 if name.endswith(".ssm_a") else 1.0, 0.1
    return kind, 0.0, (1.0 if name.startswith("token_embd") else
                       2 / extents[0]**0.5 if "ffn_gate_inp" in name or name.startswith("output.")
                       else 1 / extents[0]**0.5)


def make_pools(tensors, seed):
    pools = {}
    for tensor in tensors:
        key = kind, mean, deviation = kind_of(tensor)
        if key not in pools:
            generator = random.Random(f"{seed} {key}")
            pools[key] = (random_floats(generator, mean, deviation) if kind == F32 else
                          random_blocks(generator, kind, deviation))
    return pools


def pieces_of(tensors, start, seed):
    """(offset in the file, bytes, key of the pool, block of the pool that comes first)"""
    generator = random.Random(seed)
    for tensor in tensors:
        key = kind_of(tensor)
        unit = 4 if key[0] == F32 else BLOCKS[key[0]][1]
        count = POOL_FLOATS if key[0] == F32 else POOL_BYTES // unit
        left, at = stored_bytes(tensor), start + tensor[3]
        step = PIECE_BYTES // unit * unit
        while left > 0:
            yield at, min(left, step), key, generator.randrange(count) * unit
            at += step
            left -= step


POOLS, FILE = {}, None  # of a process that writes


def write_piece(piece):
    at, left, key, begin = piece
    pool = memoryview(POOLS[key])
    while left > 0:
        done = os.pwrite(FILE, pool[begin:begin + left], at)
        at, left, begin = at + done, left - done, (begin + done) % len(pool)


def is_expert(tensor):
    return "_exps." in tensor[0]


def write_all(path, front, tensors, start, size, seed):
    global POOLS, FILE  # pylint: disable=global-statement
    POOLS = make_pools(tensors, seed)
    with open(path, "wb") as file:
        file.write(front)
        file.truncate(size)
        file.flush()
        FILE = file.fileno()
        pieces = list(pieces_of(tensors, start, seed))
        workers = min(len(pieces), len(os.sched_getaffinity(0)))
        if workers < 2:
            for piece in pieces:
                write_piece(piece)
            return
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            for _ in pool.imap_unordered(write_piece, pieces):
                pass


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
    parser.add_argument("--zero-experts", action="store_true",
                        help="without the routed experts' weights: holes of zeros")
    arguments = parser.parse_args()
    try:
        data = pathlib.Path(arguments.header).read_bytes()
        header = Header(data)
    except OSError as error:
        sys.exit(f"fill_gguf: {arguments.header}: {error.strerror}; expected a header")
    except (struct.error, KeyError, UnicodeDecodeError):
        sys.exit(f"fill_gguf: {arguments.header} ends early or is no header; make it again")
    start = -(-header.at // ALIGNMENT) * ALIGNMENT
    needed = max((start + tensor[3] + stored_bytes(tensor) for tensor in header.tensors), default=0)
    drawn = [tensor for tensor in header.tensors
             if not (arguments.zero_experts and is_expert(tensor))]
    taken = start + sum(map(stored_bytes, drawn))
    free = shutil.disk_usage(arguments.out.parent).free
    if taken + (64 << 20) > free:
        sys.exit(f"fill_gguf: {arguments.out} needs {taken / 1e9:.1f} GB and its disk has "
                 f"{free / 1e9:.1f} GB free; expected more, or a smaller shape")
    size = -(-needed // ALIGNMENT) * ALIGNMENT
    temporary = arguments.out.with_name(arguments.out.name + ".tmp")
    try:
        write_all(temporary, data[:header.at], drawn, start, size, arguments.seed)
        os.replace(temporary, arguments.out)
    finally:
        temporary.unlink(missing_ok=True)
    print(f"{arguments.out}: {size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()

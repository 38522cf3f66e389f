# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF file of a mixture-of-experts model with random weights, to measure speed on.

    make_moe_gguf.py OUT.gguf
                     [--shape qwen3moe|olmoe|30b-a3b|gpt-oss|glm-flash|qwen3.5|gemma4]
                     [--type TYPE] [--head TYPE]
                     [--seed N] [--header] [--holes] [--layers N] [--hidden N] ...

Needs PyPI's `gguf` and `numpy`. Types are those of ggml's blocks (q4_0, iq2_xxs, nvfp4 ...: --help
lists them), q4_k_m, a mix, and mxfp4, which has Q8_0 outside the experts. Shapes: `qwen3moe` (3.4 billion parameters), `olmoe` (OLMoE-1B-7B's),
`30b-a3b` (Qwen3-30B-A3B's), `gpt-oss` (gpt-oss-20b's, with --type mxfp4), `glm-flash`
(GLM-4.7-Flash's), `qwen3.5` (Qwen3.5-35B-A3B's) and `gemma4` (Gemma-4-26B-A4B's); any of their sizes
can be given anew, as --layers 2. moe_layouts.py has their layers and metadata. What stands in
quantized blocks is drawn as random bits under scales that give each weight a mean of 0 and a standard
deviation of 1 / sqrt(columns), so activations stay finite and the logits are no two alike. The
tokenizer is byte-level BPE: any text is encoded and comes back. At most one tensor is in memory.
--header writes what stands before the weights, which fill_gguf.py draws on another machine. --holes
leaves the matrices as holes in the file, zeros that take neither time nor room: `vitrine inspect` says
what such a model takes.
"""

import argparse
import dataclasses
import os
import pathlib
import shutil
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from moe_blocks import DRAWN, NVFP4_DEVIATION, block_size, fill_blocks, has_scale
from moe_layouts import Gemma4, GlmFlash, GptOss, Qwen35, Shape

# Random bits in the tables of `30b-a3b` are of the order of gigabytes: a fast generator.
Generator = np.random.SFC64

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LETTERS = "etaoinshrdlcumwfgypbvkjxqz"

SHAPES = {
    "qwen3moe": Shape("qwen3moe", hidden=1024, layers=16, experts=128, top_k=8, expert_width=512,
                      heads=16, kv_heads=4, head_dim=128, vocabulary=32000, context=40960,
                      rope_base=1e6, pre_tokenizer="qwen2"),
    "olmoe": Shape("olmoe", hidden=2048, layers=16, experts=64, top_k=8, expert_width=1024,
                   heads=16, kv_heads=16, head_dim=128, vocabulary=50304, context=4096,
                   rope_base=1e4, pre_tokenizer="olmo"),
    "30b-a3b": Shape("qwen3moe", hidden=2048, layers=48, experts=128, top_k=8, expert_width=768,
                     heads=32, kv_heads=4, head_dim=128, vocabulary=151936, context=40960,
                     rope_base=1e6, pre_tokenizer="qwen2"),
    "gpt-oss": GptOss("gpt-oss", hidden=2880, layers=24, experts=32, top_k=4, expert_width=2880,
                      heads=64, kv_heads=8, head_dim=64, vocabulary=201088, context=131072,
                      rope_base=150000.0, pre_tokenizer="gpt-4o"),
    "glm-flash": GlmFlash("deepseek2", hidden=2048, layers=47, experts=64, top_k=4,
                          expert_width=1536, heads=20, kv_heads=1, head_dim=256,
                          vocabulary=154880, context=202752, rope_base=1e6, pre_tokenizer="glm4"),
    "qwen3.5": Qwen35("qwen35moe", hidden=2048, layers=40, experts=256, top_k=8, expert_width=512,
                      heads=16, kv_heads=2, head_dim=256, vocabulary=248320, context=262144,
                      rope_base=1e7, pre_tokenizer="qwen35"),
    # Its own tokenizer is of another kind; llama.cpp and Vitrine take this one, too.
    "gemma4": Gemma4("gemma4", hidden=2816, layers=30, experts=128, top_k=8, expert_width=704,
                     heads=16, kv_heads=8, head_dim=256, vocabulary=262144, context=262144,
                     rope_base=1e6, pre_tokenizer="qwen2"),
}
SIZES = ("hidden", "layers", "experts", "top_k", "expert_width", "heads", "kv_heads", "head_dim",
         "vocabulary", "context")
HELP = {"layers": "11 of glm-flash are 4.0 GB at q4_0, 8 of qwen3.5 4.4 GB at q4_0 and 4.8 GB at "
                  "q4_k_m, 8 of gemma4 4.1 GB at q4_0, 6 of gpt-oss 4.0 GB at mxfp4 (glm-flash and "
                  "gemma4 have rows that are no multiple of 256, as q4_k_m needs)"}


@dataclasses.dataclass
class Mix:
    """The types of a file's matrices."""
    body: Type
    experts: Type
    file_type: gguf.LlamaFileType
    finer: Type | None = None  # of some layers' values and downward projections


def pure_mix(kind):
    names = [f"MOSTLY_{kind.name}{ending}" for ending in ("", "_S")]
    found = [gguf.LlamaFileType[name] for name in names if name in gguf.LlamaFileType.__members__]
    return Mix(kind, kind, found[0] if found else gguf.LlamaFileType.GUESSED)


MIXES = {
    **{kind.name.lower(): pure_mix(kind) for kind in DRAWN},
    "q4_k_m": Mix(Type.Q4_K, Type.Q4_K, gguf.LlamaFileType.MOSTLY_Q4_K_M, finer=Type.Q6_K),
    "mxfp4": Mix(Type.Q8_0, Type.MXFP4, gguf.LlamaFileType.MOSTLY_MXFP4_MOE),
}
HEADS = {**{kind.name.lower(): kind for kind in DRAWN}, "f16": Type.F16}


def stored_bytes(extents, kind):
    if kind in (None, Type.F32):
        return 4 * int(np.prod(extents))
    values, block_bytes = block_size(kind)
    return int(np.prod(extents)) // values * block_bytes


def with_scales(shape, tensors):
    """Puts the scale behind each matrix that has one of its own: {its name: its value}, and all."""
    scales, result = {}, []
    for name, extents, kind in tensors:
        result.append((name, extents, kind))
        if has_scale(name, kind):
            scale = name.removesuffix("weight") + "scale"
            scales[scale] = shape.deviation(name, extents[-1]) / NVFP4_DEVIATION
            result.append((scale, extents[:-2] or (1,), Type.F32))
    return scales, result


def make_tensor(random, shape, name, extents, kind, scales):
    if name in scales:
        return np.full(extents, scales[name], np.float32)
    values = shape.own_values(random, name, extents)
    if values is not None:
        return values.astype(np.float32)
    if kind is None:
        return (1 + 0.1 * random.standard_normal(extents, np.float32)).astype(np.float32)
    deviation = shape.deviation(name, extents[-1])
    if kind in (Type.F32, Type.F16):
        values = random.standard_normal(extents, np.float32) * np.float32(deviation)
        return values.astype(np.float16 if kind == Type.F16 else np.float32)
    _, block_bytes = block_size(kind)
    size = stored_bytes(extents, kind)
    words = random.integers(0, 2**64, (size + 7) // 8, np.uint64)
    blocks = words.view(np.uint8)[:size].reshape(-1, block_bytes)
    fill_blocks(random, blocks, kind, None if has_scale(name, kind) else deviation)
    return blocks.reshape(*extents[:-1], -1)


class Hole:
    """Stands for a tensor that is not written."""

    def __init__(self, nbytes):
        self.nbytes = nbytes

    def tofile(self, file):
        file.seek(self.nbytes - 1, os.SEEK_CUR)
        file.write(b"\0")


def byte_characters():
    """The printable character that stands for each byte in a byte-level vocabulary, by byte."""
    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters.update((byte, chr(256 + i)) for i, byte in enumerate(others))
    return [characters[byte] for byte in range(256)]


def merge_pairs():
    """Two pieces that are made one, in the order of their ranks."""
    space = "\u0120"
    pairs = [a + b for a in LETTERS for b in LETTERS]
    yield from ((space, letter) for letter in LETTERS)
    yield from ((a, b) for a in LETTERS for b in LETTERS)
    yield from ((space + a, b) for a in LETTERS for b in LETTERS)
    yield from ((pair, letter) for pair in pairs for letter in LETTERS)
    yield from ((pair, other) for pair in pairs for other in pairs)


def add_tokenizer(writer, shape):
    tokens = byte_characters()
    merges = []
    for first, second in merge_pairs():
        if len(tokens) + len(SPECIAL_TOKENS) >= shape.vocabulary:
            break
        tokens.append(first + second)
        merges.append(f"{first} {second}")
    normal = len(tokens)
    tokens += SPECIAL_TOKENS
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(shape.pre_tokenizer)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * normal +
                           [gguf.TokenType.CONTROL] * len(SPECIAL_TOKENS))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(normal)
    writer.add_eos_token_id(normal + 2)
    writer.add_pad_token_id(normal)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def add_metadata(writer, shape, name, mix):
    writer.add_name(name)
    writer.add_file_type(mix.file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    shape.add_metadata(writer)


def write_model(path, shape, mix, head, seed, header_alone=False, holes=False):
    """Writes beside `path` and takes its place at the end: a failure leaves an old file whole."""
    path = pathlib.Path(path)
    temporary = path.with_name(path.name + ".tmp")
    scales, tensors = with_scales(shape, shape.tensors(mix, head))
    total = sum(stored_bytes(extents, kind) for _, extents, kind in tensors)
    free = shutil.disk_usage(path.parent if path.parent.name else ".").free
    if not header_alone and not holes and total + (64 << 20) > free:
        sys.exit(f"make_moe_gguf: {path} needs {total / 1e9:.1f} GB and its disk has "
                 f"{free / 1e9:.1f} GB free; expected more, or a smaller shape")
    try:
        writer = gguf.GGUFWriter(temporary, shape.architecture)
        add_metadata(writer, shape, path.stem, mix)
        add_tokenizer(writer, shape)
        for name, extents, kind in tensors:
            dtype = np.dtype(np.float16 if kind == Type.F16 else np.float32)
            writer.add_tensor_info(name, extents, dtype, stored_bytes(extents, kind),
                                   raw_dtype=kind or Type.F32)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for index, (name, extents, kind) in enumerate([] if header_alone else tensors):
            # A stream of its own: what is drawn for one tensor changes no other.
            random = np.random.Generator(Generator((seed, index)))
            is_matrix = kind is not None and name not in scales
            is_hole = holes and is_matrix and shape.own_values(random, name, extents) is None
            writer.write_tensor_data(Hole(stored_bytes(extents, kind)) if is_hole else
                                     make_tensor(random, shape, name, extents, kind, scales))
        writer.close()
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return total


def check(shape, mix, head):
    fewest, most = 256 + len(SPECIAL_TOKENS), 256 + len(SPECIAL_TOKENS) + sum(1 for _ in merge_pairs())
    if not fewest <= shape.vocabulary <= most:
        sys.exit(f"make_moe_gguf: --vocabulary is {shape.vocabulary}; expected {fewest} to {most}")
    if (shape.heads % shape.kv_heads or shape.top_k > shape.experts
            or shape.head_dim % shape.head_multiple):
        sys.exit("make_moe_gguf: expected --heads to be a multiple of --kv-heads, --top-k at most "
                 f"--experts, and --head-dim a multiple of {shape.head_multiple}")
    if (mistake := shape.mistake()) is not None:
        sys.exit(f"make_moe_gguf: {mistake}")
    for name, extents, kind in shape.tensors(mix, head):
        values = 1 if kind is None else block_size(kind)[0]
        if extents[-1] % values:
            sys.exit(f"make_moe_gguf: {name} has rows of {extents[-1]}; expected a multiple of "
                     f"{values} for {kind.name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", help="the file to write")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3moe")
    parser.add_argument("--type", choices=MIXES, default="q4_0",
                        help="of the matrices; q4_k_m has Q6_K in some layers and the head, mxfp4 "
                             "has Q8_0 outside the experts (default: q4_0)")
    parser.add_argument("--head", choices=HEADS,
                        help="type of the output head (default: as the other matrices)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--header", action="store_true",
                        help="without the weights, which fill_gguf.py draws elsewhere")
    parser.add_argument("--holes", action="store_true", help="matrices are holes in the file")
    for size in SIZES:
        parser.add_argument("--" + size.replace("_", "-"), type=int, dest=size, help=HELP.get(size))
    arguments = parser.parse_args()
    given = {size: getattr(arguments, size) for size in SIZES if getattr(arguments, size) is not None}
    if any(value < 1 for value in given.values()) or arguments.seed < 0:
        parser.error("expected sizes from 1 and a seed from 0 on")
    shape = dataclasses.replace(SHAPES[arguments.shape], **given)
    mix = MIXES[arguments.type]
    head = HEADS[arguments.head] if arguments.head else mix.finer or mix.body
    check(shape, mix, head)
    total = write_model(arguments.out, shape, mix, head, arguments.seed, arguments.header,
                        arguments.holes)
    print(f"{arguments.out}: {'a header for ' if arguments.header else ''}{total / 1e9:.2f} GB of "
          f"tensors, {shape.architecture}, {arguments.type}")


if __name__ == "__main__":
    main()

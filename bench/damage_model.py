# SPDX-License-Identifier: Apache-2.0
"""A copy of a model that noise or damage has changed, to see what a gate makes of it.

    damage_model.py MODEL OUT --noise [--seed N]              each group scale one ulp up or down
    damage_model.py MODEL OUT --expert LAYER,EXPERT,BITS      int4 codes of one expert in fewer bits
    damage_model.py MODEL OUT --kv LAYER,BITS                 codes that make a layer's keys and values
    damage_model.py MODEL OUT --channel LAYER,COUNT           the largest channels of a norm cut off
    damage_model.py MODEL OUT --rope FACTOR                   another base of the rotation
    damage_model.py MODEL OUT --merges COUNT                  the tokenizer without its first merges

MODEL is a compressed-tensors folder with int4 groups (as the shipped one), or for --noise and --rope
a GGUF file. OUT is a folder or file that is not there yet. Noise is what no gate should refuse: half
of the scales go to the next larger number of their type, half to the next smaller one. Of 0 bits
nothing is left: the weights are zero.
"""

import argparse
import json
import pathlib
import shutil
import sys

import numpy as np

# Bytes of a block, and where its float16 scales stand (ggml-common.h).
GGUF_SCALES = {
    "Q4_0": (18, (0,)), "Q4_1": (20, (0, 2)), "Q5_0": (22, (0,)), "Q5_1": (24, (0, 2)),
    "Q8_0": (34, (0,)), "Q4_K": (144, (0, 2)), "Q5_K": (176, (0, 2)), "Q6_K": (210, (208,)),
}


def fail(message):
    sys.exit(f"damage_model.py: {message}")


def move_one_ulp(bits, generator):
    """Numbers of 16 bits to a neighbour of the same sign; zeros, infinities and NaN stay."""
    magnitude = bits & 0x7FFF
    up = generator.integers(0, 2, bits.shape, dtype=np.uint16)
    moved = np.where(up == 1, bits + 1, bits - 1).astype(np.uint16)
    stays = (magnitude == 0) | (magnitude >= 0x7BFF)
    return np.where(stays, bits, moved)


class Safetensors:
    """A file's tensors as arrays that can be written in place."""

    def __init__(self, path):
        self.path = path
        self.bytes = bytearray(path.read_bytes())
        size = int.from_bytes(self.bytes[:8], "little")
        self.header = json.loads(self.bytes[8 : 8 + size])
        self.begin = 8 + size

    def array(self, name, dtype):
        if name not in self.header:
            fail(f"{self.path}: has no tensor {name}")
        entry = self.header[name]
        first, last = entry["data_offsets"]
        view = memoryview(self.bytes)[self.begin + first : self.begin + last]
        return np.frombuffer(view, dtype=dtype).reshape(-1 if dtype == np.uint8 else entry["shape"])

    def write(self):
        self.path.write_bytes(self.bytes)


def perturb_folder(tensors, seed):
    generator = np.random.default_rng(seed)
    count = 0
    for name in sorted(tensors.header):
        if not name.endswith("weight_scale"):
            continue
        bits = tensors.array(name, np.uint16)
        bits[...] = move_one_ulp(bits, generator)
        count += bits.size
    return count


def perturb_gguf(path, seed):
    import gguf

    reader = gguf.GGUFReader(path, "r+")
    generator = np.random.default_rng(seed)
    count = 0
    for tensor in reader.tensors:
        if tensor.tensor_type.name not in GGUF_SCALES:
            continue
        size, places = GGUF_SCALES[tensor.tensor_type.name]
        blocks = tensor.data.reshape(-1).view(np.uint8).reshape(-1, size)
        for place in places:
            bits = np.ascontiguousarray(blocks[:, place : place + 2]).view(np.uint16)
            moved = move_one_ulp(bits, generator)
            blocks[:, place : place + 2] = moved.view(np.uint8).reshape(-1, 2)
            count += bits.size
    reader.data.flush()
    return count


def requantize(tensors, name, bits):
    """Rounds codes of 4 bits (biased by 8) to the nearest multiple of a step; all to zero for 0 bits."""
    packed = tensors.array(f"{name}.weight_packed", np.uint32)
    step = 2 ** (4 - bits)
    out = np.zeros_like(packed)
    for place in range(8):
        codes = ((packed >> (4 * place)) & 15).astype(np.int64) - 8
        coarse = np.clip(np.round(codes / step) * step, -8, 8 - step) if bits else 0 * codes
        out |= (coarse + 8).astype(np.uint32) << np.uint32(4 * place)
    packed[...] = out


def requantize_expert(tensors, layer, expert, bits):
    for part in ("gate_proj", "up_proj", "down_proj"):
        requantize(tensors, f"model.layers.{layer}.mlp.experts.{expert}.{part}", bits)


def requantize_kv(tensors, layer, bits):
    for part in ("k_proj", "v_proj"):
        requantize(tensors, f"model.layers.{layer}.self_attn.{part}", bits)


def clip_channels(tensors, layer, count):
    name = f"model.layers.{layer}.post_attention_layernorm.weight"
    bits = tensors.array(name, np.uint16)
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    largest = np.argsort(-np.abs(values))[:count]
    bits[largest] = 0
    return [int(channel) for channel in largest]


def change_rope(folder, factor):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_theta"] = float(config.get("rope_theta", 10000.0)) * factor
    path.write_text(json.dumps(config, indent=2))


def change_gguf_rope(path, factor):
    import gguf

    reader = gguf.GGUFReader(path, "r+")
    for name, field in reader.fields.items():
        if name.endswith(".rope.freq_base"):
            field.parts[field.data[0]][0] *= factor
            reader.data.flush()
            return
    fail(f"{path}: has no key rope.freq_base")


def drop_merges(folder, count):
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    del tokenizer["model"]["merges"][:count]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))


def numbers(text, count):
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != count:
        fail(f"'{text}'; expected {count} whole numbers with commas")
    return values


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--noise", action="store_true")
    kind.add_argument("--expert")
    kind.add_argument("--kv")
    kind.add_argument("--channel")
    kind.add_argument("--rope", type=float)
    kind.add_argument("--merges", type=int)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.out.exists():
        fail(f"{arguments.out}: is there already")
    if arguments.model.is_file():
        shutil.copyfile(arguments.model, arguments.out)
        if arguments.noise:
            print(f"{perturb_gguf(arguments.out, arguments.seed)} scales moved by one ulp")
        elif arguments.rope:
            change_gguf_rope(arguments.out, arguments.rope)
        else:
            fail("a GGUF file takes --noise or --rope")
        return
    shutil.copytree(arguments.model, arguments.out)
    if arguments.rope:
        return change_rope(arguments.out, arguments.rope)
    if arguments.merges:
        return drop_merges(arguments.out, arguments.merges)
    tensors = Safetensors(arguments.out / "model.safetensors")
    if arguments.noise:
        print(f"{perturb_folder(tensors, arguments.seed)} scales moved by one ulp")
    elif arguments.expert:
        requantize_expert(tensors, *numbers(arguments.expert, 3))
    elif arguments.kv:
        requantize_kv(tensors, *numbers(arguments.kv, 2))
    else:
        print("channels", clip_channels(tensors, *numbers(arguments.channel, 2)))
    tensors.write()


if __name__ == "__main__":
    main()

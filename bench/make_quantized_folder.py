# SPDX-License-Identifier: Apache-2.0
"""Writes a folder of OLMoE's or Llama's shape with random weights in integers, to measure speed on.

    make_quantized_folder.py OUT --bits 3|4|8|16 [--group 128] [--asymmetric] [--act-order]
                             [--layers 4] [--hidden 2048] [--width 1024] [--experts 64]
                             [--vocabulary 8192] [--seed 1] [--tokenizer FOLDER]

The layout is compressed-tensors' `pack-quantized`; embeddings and the head are bfloat16, as the router
is. Numbers are drawn as random bits under one scale a matrix, so that activations stay finite. With
--act-order each matrix has a random order of columns, which those of one input share: queries, keys and
values, a gate and its up. --experts 0: Llama's dense layers. Needs numpy. At most one tensor is in
memory. --bits 16 writes bfloat16 and no integers, as a source of `vitrine quantize`; with --tokenizer
the folder has that of another one, which texts are read by.
"""

import argparse
import json
import math
import pathlib
import shutil

import numpy as np


def projections(shape, layer):
    """Yields (module, rows, columns) of a layer."""
    base = f"model.layers.{layer}."
    for name in ("q", "k", "v", "o"):
        yield f"{base}self_attn.{name}_proj", shape.hidden, shape.hidden
    blocks = [f"experts.{expert}." for expert in range(shape.experts)] or [""]
    for block in blocks:
        for name in ("gate", "up"):
            yield f"{base}mlp.{block}{name}_proj", shape.width, shape.hidden
        yield f"{base}mlp.{block}down_proj", shape.hidden, shape.width


def bfloat16(values):
    """Cuts float32 off to bfloat16."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def floats(name, shape, value):
    """A tensor of bfloat16 that `value` makes of a generator."""
    return name, "BF16", shape, lambda generator: bfloat16(value(generator))


def normals(name, rows, columns):
    return floats(name, [rows, columns], lambda generator: generator.standard_normal(
        (rows, columns), np.float32) / np.float32(math.sqrt(columns)))


def ones(name, count):
    return floats(name, [count], lambda _: np.ones(count))


def group_of_columns(module, columns, shape):
    """The group of each column, the same for all matrices of one input."""
    block, _, name = module.rpartition(".")
    inputs = "qkv" if name[0] in "qkv" else "gate_up" if name[0] in "gu" else name
    generator = np.random.default_rng([shape.seed, *f"{block}.{inputs}".encode()])
    return generator.permutation(np.arange(columns, dtype=np.int32) // shape.group)


def integers(module, rows, columns, shape):
    """The tensors of a matrix."""
    if shape.bits == 16:
        yield normals(f"{module}.weight", rows, columns)
        return
    words = (columns * shape.bits + 31) // 32
    groups = -(-columns // shape.group)
    deviation = 2**shape.bits / math.sqrt(12)
    random_words = lambda size: lambda generator: generator.integers(
        0, 2**32, size, np.uint32, endpoint=False)
    yield f"{module}.weight_packed", "I32", [rows, words], random_words((rows, words))
    yield floats(f"{module}.weight_scale", [rows, groups],
                 lambda _: np.full((rows, groups), 1 / (deviation * math.sqrt(columns))))
    yield (f"{module}.weight_shape", "I64", [2], lambda _: np.array([rows, columns], np.int64))
    if shape.asymmetric:
        size = ((rows * shape.bits + 31) // 32, groups)
        yield f"{module}.weight_zero_point", "I32", list(size), random_words(size)
    if shape.act_order:
        yield (f"{module}.weight_g_idx", "I32", [columns],
               lambda _: group_of_columns(module, columns, shape))


def tensors(shape):
    """Yields (name, type, shape, maker of its values)."""
    yield normals("model.embed_tokens.weight", shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        base = f"model.layers.{layer}."
        norms = ["input_layernorm", "post_attention_layernorm"]
        if shape.experts > 0:
            norms += ["self_attn.q_norm", "self_attn.k_norm"]
            yield normals(f"{base}mlp.gate.weight", shape.experts, shape.hidden)
        for name in norms:
            yield ones(f"{base}{name}.weight", shape.hidden)
        for module, rows, columns in projections(shape, layer):
            yield from integers(module, rows, columns, shape)
    yield ones("model.norm.weight", shape.hidden)
    yield normals("lm_head.weight", shape.vocabulary, shape.hidden)


def config(shape):
    weights = {"num_bits": shape.bits, "type": "int", "symmetric": not shape.asymmetric,
               "group_size": shape.group, "strategy": "group", "dynamic": False,
               "actorder": "group" if shape.act_order else None}
    experts = {"num_experts": shape.experts, "num_experts_per_tok": min(8, shape.experts),
               "norm_topk_prob": False, "clip_qkv": None} if shape.experts > 0 else {}
    name = "Olmoe" if shape.experts > 0 else "Llama"
    quantization = {} if shape.bits == 16 else {"quantization_config": {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"] + [f"model.layers.{i}.mlp.gate" for i in range(shape.layers)]}}
    return {
        "architectures": [f"{name}ForCausalLM"], "model_type": name.lower(), **experts,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.width, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.hidden // 128, "num_key_value_heads": shape.hidden // 128,
        "vocab_size": shape.vocabulary, "max_position_embeddings": 4096,
        "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
        "hidden_act": "silu", "attention_bias": False, "torch_dtype": "bfloat16",
        **quantization}


def write(folder, tensors, config, seed):
    """Writes (name, type, shape, maker of its values) of each tensor, which are made one by one."""
    sizes = {"U8": 1, "BF16": 2, "I32": 4, "I64": 8}
    header, offset = {}, 0
    for name, dtype, extents, _ in tensors:
        end = offset + sizes[dtype] * math.prod(extents)
        header[name] = {"dtype": dtype, "shape": extents, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = np.random.Generator(np.random.SFC64(seed))
    folder.mkdir(parents=True)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, _, values in tensors:
            file.write(np.ascontiguousarray(values(generator)).tobytes())
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--bits", type=int, choices=(3, 4, 8, 16), required=True)
    parser.add_argument("--asymmetric", action="store_true")
    parser.add_argument("--act-order", action="store_true")
    for name, default in (("group", 128), ("layers", 4), ("hidden", 2048), ("width", 1024),
                          ("experts", 64), ("vocabulary", 8192), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tokenizer", type=pathlib.Path, metavar="FOLDER")
    arguments = parser.parse_args()
    write(arguments.out, list(tensors(arguments)), config(arguments), arguments.seed)
    if arguments.tokenizer is not None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(arguments.tokenizer / name, arguments.out)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Writes a folder of OLMoE's or Llama's shape with random weights in integers, to measure speed on.

    make_quantized_folder.py OUT --bits 3|4|8|16 [--layout pack|w8a8|gptq|awq|exl2|nvfp4] [--group 128]
                             [--asymmetric] [--act-order] [--layers 4] [--hidden 2048] [--width 1024]
                             [--experts 64] [--vocabulary 8192] [--seed 1] [--tokenizer FOLDER]

The layout is compressed-tensors' `pack-quantized`, or `int-quantized` with a scale of activations for
each token (w8a8, 8 bits), or another one of 4 bits: GPTQ's (v2), AWQ's (asymmetric), EXL2's (of one
width, always in an order) and NVFP4 (groups of 16). Embeddings and the head are bfloat16, as the router
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


def order_of_columns(module, columns, shape):
    """A permutation of the columns, the same for all matrices of one input."""
    block, _, name = module.rpartition(".")
    inputs = "qkv" if name[0] in "qkv" else "gate_up" if name[0] in "gu" else name
    generator = np.random.default_rng([shape.seed, *f"{block}.{inputs}".encode()])
    return generator.permutation(np.arange(columns, dtype=np.int32))


def group_of_columns(module, columns, shape):
    return order_of_columns(module, columns, shape) // np.int32(shape.group)


def random_bits(name, dtype, shape, unsigned=np.uint32):
    """A tensor whose bits are drawn."""
    return name, dtype, shape, lambda generator: generator.integers(
        0, np.iinfo(unsigned).max, shape, unsigned, endpoint=True)


def filled(name, dtype, shape, value):
    return name, dtype, shape, lambda _: np.full(shape, value)


def gptq(module, rows, columns, shape):
    """GPTQ's tensors, version 2; AWQ's have the words along the rows."""
    words, groups = columns * shape.bits // 32, columns // shape.group
    scale = np.float16(math.sqrt(12 / columns) / 2**shape.bits)
    row_words = rows * shape.bits // 32
    if shape.layout == "awq":
        yield random_bits(f"{module}.qweight", "I32", [columns, row_words])
    else:
        yield random_bits(f"{module}.qweight", "I32", [words, rows])
        order = group_of_columns(module, columns, shape) if shape.act_order else np.arange(
            columns, dtype=np.int32) // np.int32(shape.group)
        yield f"{module}.g_idx", "I32", [columns], lambda _: order
    if shape.asymmetric:
        yield random_bits(f"{module}.qzeros", "I32", [groups, row_words])
    else:
        yield filled(f"{module}.qzeros", "I32", [groups, row_words], np.uint32(0x88888888))
    yield filled(f"{module}.scales", "F16", [groups, rows], scale)


def exl2(module, rows, columns, shape):
    """EXL2's tensors, all groups of one width."""
    words, groups = columns * shape.bits // 32, columns // shape.group
    largest = np.float16(256 / 93.5 * math.sqrt(12 / columns) / 2**shape.bits)  # (s + 1)^2 is 93.5
    group_words = shape.bits * shape.group // 32
    yield random_bits(f"{module}.q_weight", "I32", [words, rows])
    yield (f"{module}.q_invperm", "I32", [columns],
           lambda _: order_of_columns(module, columns, shape))
    yield random_bits(f"{module}.q_scale", "I32", [groups, rows // 8])
    yield filled(f"{module}.q_scale_max", "F16", [groups], largest)
    yield (f"{module}.q_groups", "I16", [2 * groups], lambda _: np.array(
        [[shape.bits, i * group_words] for i in range(groups)], np.int16).reshape(-1))


def nvfp4(module, rows, columns, _):
    """NVFP4's tensors as compressed-tensors has them; the mean square of a number is 8.56."""
    yield random_bits(f"{module}.weight_packed", "U8", [rows, columns // 2], np.uint8)
    yield filled(f"{module}.weight_scale", "F8_E4M3", [rows, columns // 16], np.uint8(0x38))  # 1
    yield filled(f"{module}.weight_global_scale", "F32", [1],
                 np.float32(math.sqrt(8.56 * columns)))


def w8a8(module, rows, columns, _):
    yield random_bits(f"{module}.weight", "I8", [rows, columns], np.uint8)
    yield floats(f"{module}.weight_scale", [rows, 1],
                 lambda _: np.full((rows, 1), math.sqrt(12 / columns) / 256))


def integers(module, rows, columns, shape):
    """The tensors of a matrix."""
    other = {"w8a8": w8a8, "gptq": gptq, "awq": gptq, "exl2": exl2, "nvfp4": nvfp4}.get(shape.layout)
    if other is not None:
        yield from other(module, rows, columns, shape)
        return
    if shape.bits == 16:
        yield normals(f"{module}.weight", rows, columns)
        return
    words = (columns * shape.bits + 31) // 32
    groups = -(-columns // shape.group)
    deviation = 2**shape.bits / math.sqrt(12)
    yield random_bits(f"{module}.weight_packed", "I32", [rows, words])
    yield floats(f"{module}.weight_scale", [rows, groups],
                 lambda _: np.full((rows, groups), 1 / (deviation * math.sqrt(columns))))
    yield (f"{module}.weight_shape", "I64", [2], lambda _: np.array([rows, columns], np.int64))
    if shape.asymmetric:
        yield random_bits(f"{module}.weight_zero_point", "I32",
                          [(rows * shape.bits + 31) // 32, groups])
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


def quantization_config(shape):
    ignored = ["lm_head"] + [f"model.layers.{i}.mlp.gate" for i in range(shape.layers)]
    if shape.layout == "gptq":
        return {"quant_method": "gptq", "bits": shape.bits, "group_size": shape.group,
                "desc_act": shape.act_order, "sym": not shape.asymmetric,
                "checkpoint_format": "gptq_v2"}
    if shape.layout == "awq":
        return {"quant_method": "awq", "bits": shape.bits, "group_size": shape.group,
                "zero_point": True, "version": "gemm", "modules_to_not_convert": ignored}
    if shape.layout == "exl2":
        return {"quant_method": "exl2", "bits": float(shape.bits)}
    weights = {"num_bits": shape.bits, "type": "int", "symmetric": not shape.asymmetric,
               "group_size": shape.group, "strategy": "group", "dynamic": False,
               "actorder": "group" if shape.act_order else None}
    if shape.layout == "nvfp4":
        weights |= {"type": "float", "group_size": 16, "strategy": "tensor_group"}
    activations = None
    if shape.layout == "w8a8":
        weights |= {"group_size": None, "strategy": "channel"}
        activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token",
                       "dynamic": True}
    formats = {"nvfp4": "nvfp4-pack-quantized", "w8a8": "int-quantized", "pack": "pack-quantized"}
    return {"quant_method": "compressed-tensors", "format": formats[shape.layout],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                                          "input_activations": activations}},
            "ignore": ignored}


def config(shape):
    experts = {"num_experts": shape.experts, "num_experts_per_tok": min(8, shape.experts),
               "norm_topk_prob": False, "clip_qkv": None} if shape.experts > 0 else {}
    name = "Olmoe" if shape.experts > 0 else "Llama"
    quantization = {} if shape.bits == 16 else {
        "quantization_config": quantization_config(shape)}
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
    sizes = {"U8": 1, "I8": 1, "F8_E4M3": 1, "BF16": 2, "F16": 2, "I16": 2, "I32": 4, "F32": 4, "I64": 8}
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
    parser.add_argument("--layout", choices=("pack", "w8a8", "gptq", "awq", "exl2", "nvfp4"), default="pack")
    parser.add_argument("--asymmetric", action="store_true")
    parser.add_argument("--act-order", action="store_true")
    for name, default in (("group", 128), ("layers", 4), ("hidden", 2048), ("width", 1024),
                          ("experts", 64), ("vocabulary", 8192), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tokenizer", type=pathlib.Path, metavar="FOLDER")
    arguments = parser.parse_args()
    needed = {"pack": arguments.bits, "w8a8": 8}.get(arguments.layout, 4)
    if arguments.bits != needed:
        parser.error(f"--layout {arguments.layout} is written in {needed} bits")
    if arguments.layout == "awq" and not arguments.asymmetric:
        parser.error("--layout awq has zero points: add --asymmetric")
    if arguments.layout in ("w8a8", "exl2", "nvfp4") and arguments.asymmetric:
        parser.error(f"--layout {arguments.layout} has no zero points")
    if arguments.layout in ("w8a8", "awq", "nvfp4") and arguments.act_order:
        parser.error(f"--layout {arguments.layout} has no order of columns")
    write(arguments.out, list(tensors(arguments)), config(arguments), arguments.seed)
    if arguments.tokenizer is not None:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(arguments.tokenizer / name, arguments.out)


if __name__ == "__main__":
    main()

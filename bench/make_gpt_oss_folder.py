# SPDX-License-Identifier: Apache-2.0
"""Writes a folder of gpt-oss's shape as it is published, with random weights, to measure its load on.

    make_gpt_oss_folder.py OUT [--layers 9] [--experts 32] [--hidden 2880] [--width 2880]
                           [--vocabulary 8192] [--seed 1]

The experts of a layer are three-dimensional tensors of MXFP4 blocks, in which rows of gate and up
take turns; all else is bfloat16. `make_moe_gguf.py OUT --shape gpt-oss --type mxfp4` with the same
sizes writes the GGUF file to compare with. Needs numpy. At most one tensor is in memory.
"""

import argparse
import math
import pathlib

import numpy as np

from make_quantized_folder import bfloat16, write

HEADS, KV_HEADS, HEAD_DIM = 64, 8, 64


def floats(name, *shape):
    """Returns a tensor of bfloat16, drawn so that a product keeps the size of its input."""
    deviation = np.float32(1 / math.sqrt(shape[-1]))
    return name, "BF16", list(shape), lambda generator: bfloat16(
        generator.standard_normal(shape, np.float32) * deviation)


def ones(name, *shape):
    return name, "BF16", list(shape), lambda _: bfloat16(np.ones(shape))


def blocks(name, shape, rows, columns):
    """Yields the numbers of all experts, two in a byte, and a power of two for 32 of them."""
    numbers = [shape.experts, rows, columns // 32, 16]
    yield (name + "_blocks", "U8", numbers,
           lambda generator: generator.integers(0, 256, numbers, np.uint8))
    exponent = 127 - round(math.log2(3 * math.sqrt(columns)))
    yield (name + "_scales", "U8", numbers[:3],
           lambda generator: generator.integers(exponent - 1, exponent + 2, numbers[:3], np.uint8))
    yield ones(name + "_bias", shape.experts, rows)


def tensors(shape):
    """Yields (name, type, shape, maker of its values)."""
    yield floats("model.embed_tokens.weight", shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        base = f"model.layers.{layer}."
        for name, rows, columns in (("q", HEADS * HEAD_DIM, shape.hidden),
                                    ("k", KV_HEADS * HEAD_DIM, shape.hidden),
                                    ("v", KV_HEADS * HEAD_DIM, shape.hidden),
                                    ("o", shape.hidden, HEADS * HEAD_DIM)):
            yield floats(f"{base}self_attn.{name}_proj.weight", rows, columns)
            yield floats(f"{base}self_attn.{name}_proj.bias", rows)
        yield floats(f"{base}self_attn.sinks", HEADS)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield ones(f"{base}{name}.weight", shape.hidden)
        yield floats(f"{base}mlp.router.weight", shape.experts, shape.hidden)
        yield floats(f"{base}mlp.router.bias", shape.experts)
        yield from blocks(f"{base}mlp.experts.gate_up_proj", shape, 2 * shape.width, shape.hidden)
        yield from blocks(f"{base}mlp.experts.down_proj", shape, shape.hidden, shape.width)
    yield ones("model.norm.weight", shape.hidden)
    yield floats("lm_head.weight", shape.vocabulary, shape.hidden)


def config(shape):
    return {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
        "hidden_size": shape.hidden, "intermediate_size": shape.width,
        "num_hidden_layers": shape.layers, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "num_local_experts": shape.experts, "num_experts_per_tok": min(4, shape.experts),
        "vocab_size": shape.vocabulary, "max_position_embeddings": 131072,
        "rope_theta": 150000.0, "rms_norm_eps": 1e-5, "sliding_window": 128,
        "layer_types": [("full" if layer % 2 else "sliding") + "_attention"
                        for layer in range(shape.layers)],
        "swiglu_limit": 7.0, "attention_bias": True, "tie_word_embeddings": False,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                         "truncate": False, "original_max_position_embeddings": 4096},
        "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
            "lm_head"]}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    for name, default in (("layers", 9), ("experts", 32), ("hidden", 2880), ("width", 2880),
                          ("vocabulary", 8192), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    write(arguments.out, list(tensors(arguments)), config(arguments), arguments.seed)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Writes draft heads of random numbers in bfloat16, for measurements of what guesses cost.

    random_heads.py eagle3|peagle|medusa NEW_FOLDER [sizes]

The sizes are those of heads for SmolLM2-135M unless others are given. Nothing that they guess is
right but by chance. Needs torch and safetensors."""

import argparse
import json
import pathlib

import torch
from safetensors.torch import save_file


def matrix(rows, cols):
    return (torch.randn(rows, cols) * cols ** -0.5).bfloat16()


def eagle(sizes, layers):
    """One layer of EAGLE-3; its draft tokens are the first of the vocabulary."""
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    queries = sizes["num_attention_heads"] * sizes["head_dim"]
    keys = sizes["num_key_value_heads"] * sizes["head_dim"]
    draft = sizes["draft_vocab_size"]
    shapes = {"self_attn.q_proj": (queries, 2 * hidden), "self_attn.k_proj": (keys, 2 * hidden),
              "self_attn.v_proj": (keys, 2 * hidden), "self_attn.o_proj": (hidden, queries),
              "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
              "mlp.down_proj": (hidden, inner)}
    tensors = {f"layers.0.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        tensors[f"layers.0.{name}.weight"] = torch.ones(hidden).bfloat16()
    tensors["fc.weight"] = matrix(hidden, len(layers) * hidden)
    tensors["norm.weight"] = torch.ones(hidden).bfloat16()
    tensors["lm_head.weight"] = matrix(draft, hidden)
    tensors["d2t"] = torch.zeros(draft, dtype=torch.long)
    config = {"model_type": "llama", "hidden_act": "silu", "num_hidden_layers": 1,
              "rms_norm_eps": 1e-5, "rope_theta": 1e5, "max_position_embeddings": 2048,
              "eagle_aux_hidden_state_layer_ids": layers, **sizes}
    return tensors, config


def medusa(sizes, heads):
    hidden, draft = sizes["hidden_size"], sizes["draft_vocab_size"]
    tensors = {"token_map": torch.arange(draft)}
    for head in range(heads):
        tensors[f"blocks.{head}.layers.0.weight"] = matrix(hidden, hidden)
        tensors[f"lm_heads.{head}.weight"] = matrix(draft, hidden)
    return tensors, {"model_type": "medusa", "hidden_size": hidden, "num_heads": heads,
                     "vocab_size": sizes["vocab_size"], "num_hidden_layers": 1,
                     "truncated_vocab_size": draft}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=("eagle3", "peagle", "medusa"))
    parser.add_argument("folder", type=pathlib.Path)
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9,
             "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152,
             "draft_vocab_size": 4096}
    for name, size in sizes.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=size)
    parser.add_argument("--layers", default="2,15,27", help="of the model, as they are entered")
    parser.add_argument("--medusa-heads", type=int, default=4)
    asked = parser.parse_args()
    sizes = {name: getattr(asked, name) for name in sizes}
    torch.manual_seed(1)
    layers = [int(layer) for layer in asked.layers.split(",")]
    tensors, config = (medusa(sizes, asked.medusa_heads) if asked.kind == "medusa"
                       else eagle(sizes, layers))
    if asked.kind == "peagle":
        tensors["mask_hidden"] = matrix(1, len(layers) * sizes["hidden_size"])[None]
        config["mask_token_id"] = 0
    asked.folder.mkdir(parents=True)
    save_file(tensors, asked.folder / "model.safetensors", metadata={"format": "pt"})
    (asked.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A GGUF file of the architecture `llama` or `qwen2` in transformers, its weights dequantized to
float32."""

import gguf
import numpy as np
import torch
import transformers
from gguf_files import LAYER_NAMES, OUTER_NAMES

# Each architecture's class of configs. Files of `llama` have the rows of queries and keys in pairs
# for RoPE, transformers in halves.
FAMILIES = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}
PAIRED = ("llama",)


def field(reader, key):
    part = reader.get_field(key)
    return [bytes(part.parts[index]).decode() for index in part.data]


def in_halves(array, heads):
    """Rows of queries or keys, or their biases, in Hugging Face's order."""
    rest = array.shape[1:]
    return array.reshape(heads, array.shape[0] // heads // 2, 2, *rest).swapaxes(1, 2).reshape(array.shape)


def dequantized_model(path):
    """The file's weights in transformers."""
    reader = gguf.GGUFReader(path)
    family = field(reader, "general.architecture")[0]
    if family not in FAMILIES:
        raise ValueError(f"{path} has the architecture {family}; expected {' or '.join(FAMILIES)}")
    number = lambda key: reader.get_field(f"{family}.{key}").parts[-1][0].item()
    heads, kv_heads = number("attention.head_count"), number("attention.head_count_kv")
    state = {}
    for tensor in reader.tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        array = array.reshape(tuple(int(extent) for extent in reversed(tensor.shape)))
        name = tensor.name
        if family in PAIRED and (".attn_q." in name or ".attn_k." in name):
            array = in_halves(array, heads if ".attn_q." in name else kv_heads)
        state[hugging_face_name(name)] = torch.from_numpy(np.array(array))
    is_tied = "lm_head.weight" not in state
    config = FAMILIES[family](
        vocab_size=len(state["model.embed_tokens.weight"]), hidden_size=number("embedding_length"),
        intermediate_size=number("feed_forward_length"), num_hidden_layers=number("block_count"),
        num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=is_tied,
        max_position_embeddings=number("context_length"),
        rms_norm_eps=round(number("attention.layer_norm_rms_epsilon"), 9),
        rope_parameters={"rope_type": "default", "rope_theta": number("rope.freq_base")})
    with torch.device("meta"):  # the weights are the file's, no others are made first
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32,
                                                              attn_implementation="eager")
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    assert missing == ["lm_head.weight"] * is_tied and not unexpected, (missing, unexpected)
    model.tie_weights()
    return model.eval()


def hugging_face_name(name):
    if not name.startswith("blk."):
        return {short: long for long, short in OUTER_NAMES.items()}[name]
    _, layer, module, suffix = name.split(".")
    # The first of several modules with one name is llama's.
    modules = {short: long for long, short in reversed(LAYER_NAMES.items())
               if not long.startswith("block")}
    return f"model.layers.{layer}.{modules[module]}.{suffix}"

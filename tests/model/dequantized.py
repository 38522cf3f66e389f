# SPDX-License-Identifier: Apache-2.0
"""A GGUF file of the architecture `llama` in transformers, its weights dequantized to float32."""

import gguf
import numpy as np
import torch
import transformers
from gguf_files import LAYER_NAMES


def field(reader, key):
    part = reader.get_field(key)
    return [bytes(part.parts[index]).decode() for index in part.data]


def dequantized_model(path):
    """The file's weights in transformers, query and key rows in Hugging Face's order."""
    reader = gguf.GGUFReader(path)
    number = lambda key: reader.get_field(f"llama.{key}").parts[-1][0].item()
    heads, kv_heads = number("attention.head_count"), number("attention.head_count_kv")
    state = {}
    for tensor in reader.tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        array = array.reshape(tuple(int(extent) for extent in reversed(tensor.shape)))
        name = tensor.name
        if ".attn_q." in name or ".attn_k." in name:
            count = heads if ".attn_q." in name else kv_heads
            array = array.reshape(count, array.shape[0] // count // 2, 2, -1).swapaxes(1, 2).reshape(array.shape)
        state[hugging_face_name(name)] = torch.from_numpy(np.array(array))
    config = transformers.LlamaConfig(
        vocab_size=len(state["model.embed_tokens.weight"]), hidden_size=number("embedding_length"),
        intermediate_size=number("feed_forward_length"), num_hidden_layers=number("block_count"),
        num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=True,
        max_position_embeddings=number("context_length"),
        rms_norm_eps=round(number("attention.layer_norm_rms_epsilon"), 9),
        rope_parameters={"rope_type": "default", "rope_theta": number("rope.freq_base")})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected, (missing, unexpected)
    return model.eval()


def hugging_face_name(name):
    if not name.startswith("blk."):
        return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]
    _, layer, module, suffix = name.split(".")
    # Of several modules with one name the first is llama's.
    modules = {short: long for long, short in reversed(LAYER_NAMES.items())
               if not long.startswith("block")}
    return f"model.layers.{layer}.{modules[module]}.{suffix}"

# SPDX-License-Identifier: Apache-2.0
"""Folders of Gemma 4's text models written as GGUF files by PyPI's `gguf`, as llama.cpp's converter lays them out."""

import json
import pathlib
import re

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf_files import fits, group_scales, quantize_with
from safetensors.torch import load_file, save_file

MODEL_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}
LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight", "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight", "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight", "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight", "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight", "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight", "experts.down_proj": "ffn_down_exps.weight",
    "layer_scalar": "layer_output_scale.weight", "per_layer_input_gate.weight": "inp_gate.weight",
    "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight",
}


def gguf_name(name):
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
    return f"blk.{layer[1]}.{LAYER_NAMES[layer[2]]}" if layer else MODEL_NAMES[name]


def kind_for(kind):
    """Matrices in this type where their rows fit, routers and vectors in F32, as published files."""
    return lambda name, array: kind if fits(array, kind) and "_inp" not in name else Type.F32


def global_fields(config):
    """Head width and key-value heads of layers that do not slide, as older and newer configs tell them."""
    usual = {"head_dim": config["head_dim"], "num_key_value_heads": config["num_key_value_heads"]}
    if "per_layer_config" in config:
        own = next(iter(config["per_layer_config"].values()), {})
    else:
        own = {"head_dim": config["global_head_dim"]}
        if config["attention_k_eq_v"] and config.get("num_global_key_value_heads"):
            own["num_key_value_heads"] = config["num_global_key_value_heads"]
    fields = {**usual, **own}
    return fields["head_dim"], fields["num_key_value_heads"]


def add_config(writer, config):
    layers = config["num_hidden_layers"]
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    rope = config["rope_parameters"]
    head_dim, kv_heads = global_fields(config)
    own_layers = layers - config["num_kv_shared_layers"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv([config["num_key_value_heads"] if own else kv_heads for own in slides])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_dimension_count_swa(config["head_dim"])
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    width = config["intermediate_size"]
    writer.add_feed_forward_length([width * (2 if config["use_double_wide_mlp"] and layer >= own_layers else 1)
                                    for layer in range(layers)])
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config["enable_moe_block"]:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    share = rope["full_attention"].get("partial_rotary_factor", 1.0)
    turned = int(share * head_dim // 2)
    writer.add_tensor("rope_freqs.weight", np.array(
        [1.0] * turned + [1e30] * (head_dim // 2 - turned), np.float32))


def load_config(folder):
    return json.loads(pathlib.Path(folder, "config.json").read_text())


def load_tensors(folder):
    tensors = {}
    for part in sorted(pathlib.Path(folder).glob("*.safetensors")):
        tensors.update(load_file(part))
    return tensors


def write_gemma(folder, path, kind_of, fuses=True, change=None, add_more=None):
    """Writes a folder as `path`. `kind_of(name, array)`: the type of a tensor. `fuses`: gate and up
    projections of experts in one tensor. `change(arrays)`: what is done to them, by GGUF name.
    Returns the values that the file means, by the folder's names."""
    config, tensors = load_config(folder), load_tensors(folder)
    writer = gguf.GGUFWriter(path, "gemma4")
    add_config(writer, config)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    if add_more:
        add_more(writer)
    arrays = {gguf_name(name): tensor.float().numpy() for name, tensor in tensors.items()}
    if change:
        change(arrays)
    meant = {}
    for name, array in arrays.items():
        kind = kind_of(name, array)
        data, meant[name] = quantize_with(array, kind)
        if "ffn_gate_up_exps" in name and not fuses:
            for part, rows in zip(("gate", "up"), np.split(data, 2, axis=1)):
                writer.add_tensor(name.replace("gate_up", part), np.ascontiguousarray(rows), raw_dtype=kind)
        else:
            writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {name: meant.get(gguf_name(name)) for name in tensors}


def write_meant(folder, meant, out):
    """The folder with the values that a GGUF means, as float32: what transformers can read."""
    pathlib.Path(out).mkdir()
    save_file({name: torch.from_numpy(np.ascontiguousarray(array, np.float32)) for name, array in meant.items()},
              pathlib.Path(out, "model.safetensors"), metadata={"format": "pt"})
    pathlib.Path(out, "config.json").write_text(json.dumps({**load_config(folder), "dtype": "float32"}))


def write_packed(folder, kind, kind_of, out):
    """The folder in the format `pack-quantized`, with the integers and scales of the GGUF's blocks; experts
    one by one, as such folders have them."""
    bits = 4 if kind == Type.Q4_0 else 8
    per_word = 32 // bits
    result, ignored = {}, []

    def add(module, values, scales):
        offset = (values.astype(np.int64) + (1 << (bits - 1))).reshape(values.shape[0], -1, per_word)
        words = (offset << (bits * np.arange(per_word))).sum(-1).astype(np.uint32).view(np.int32)
        result[f"{module}.weight_packed"] = torch.from_numpy(words.copy())
        result[f"{module}.weight_scale"] = torch.from_numpy(scales.copy()).to(torch.float16)
        result[f"{module}.weight_shape"] = torch.tensor(values.shape, dtype=torch.int64)

    for name, tensor in load_tensors(folder).items():
        array = tensor.float().numpy()
        module = name.removesuffix(".weight")
        if kind_of(gguf_name(name), array) != kind:
            result[name] = tensor.float()
            if tensor.dim() > 1:
                ignored.append(module)
            continue
        data, meant = quantize_with(array, kind)
        scales = group_scales(data, kind).reshape(*array.shape[:-1], -1)
        wide = np.repeat(scales, 32, axis=-1)
        values = np.rint(np.divide(meant, wide, out=np.zeros_like(meant), where=wide != 0))
        if tensor.dim() == 2:
            add(module, values, scales)
            continue
        block = module.rsplit(".", 1)[0]
        for expert, both in enumerate(zip(values, scales)):
            if module.endswith("down_proj"):
                add(f"{block}.{expert}.down_proj", *both)
            else:
                halves = [np.split(part, 2) for part in both]
                add(f"{block}.{expert}.gate_proj", halves[0][0], halves[1][0])
                add(f"{block}.{expert}.up_proj", halves[0][1], halves[1][1])
    pathlib.Path(out).mkdir()
    save_file({name: tensor.contiguous() for name, tensor in result.items()},
              pathlib.Path(out, "model.safetensors"), metadata={"format": "pt"})
    quantization = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "ignore": ignored, "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": bits, "type": "int", "symmetric": True, "group_size": 32, "strategy": "group",
            "dynamic": False}}}}
    pathlib.Path(out, "config.json").write_text(
        json.dumps({**load_config(folder), "quantization_config": quantization}))


def write_vocabulary(folder, size):
    """A tokenizer.json of Gemma 4's kind with that many tokens, and its tokenizer_config.json."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>"]
    letters = ["▁", *map(chr, range(ord("a"), ord("z") + 1))]
    merges = [[left, right] for right in "etaoin" for left in letters]
    tokens = [*specials, *letters, *map("".join, merges)]
    tokens += [f"<0x{byte:02X}>" for byte in range(size - len(tokens))]
    assert len(tokens) == size
    folder = pathlib.Path(folder)
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [dict(id=id_, content=text, single_word=False, lstrip=False, rstrip=False,
                              normalized=False, special=True) for id_, text in enumerate(specials)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {text: id_ for id_, text in enumerate(tokens)}, "merges": merges}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>",
        "unk_token": "<unk>", "pad_token": "<pad>"}))

# SPDX-License-Identifier: Apache-2.0
"""Folders with Gated DeltaNet written as GGUF files by PyPI's `gguf`, as llama.cpp's converter lays them out."""

import json
import pathlib

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf_files import EXPERT_NAMES, LAYER_NAMES, load_folder, quantize_with
from safetensors.torch import save_file

ARCHITECTURES = {"qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}
WHOLE_NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
               "lm_head.weight": "output.weight"}
NAMES = {**{f"{module}.weight": f"{name}.weight" for module, name in LAYER_NAMES.items()},
         "post_attention_layernorm.weight": "post_attention_norm.weight",
         "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
         "linear_attn.in_proj_z.weight": "attn_gate.weight",
         "linear_attn.in_proj_qkvz.weight": "ssm_in.weight",
         "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
         "linear_attn.in_proj_b.weight": "ssm_beta.weight",
         "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
         "linear_attn.conv1d.weight": "ssm_conv1d.weight", "linear_attn.dt_bias": "ssm_dt.bias",
         "linear_attn.A_log": "ssm_a", "linear_attn.norm.weight": "ssm_norm.weight",
         "linear_attn.out_proj.weight": "ssm_out.weight"}


class Heads:
    """Where the heads of a layer with a state go."""

    def __init__(self, config):
        self.keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
        self.of_key = values // self.keys
        self.key_dim, self.value_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]

    def tile(self, array, axis=0, first=0, width=1):
        """From `first` on, value heads of `width` by their number within a key head's."""
        rows = np.moveaxis(array, axis, 0)
        heads = rows[first:].reshape(self.keys, self.of_key, width, *rows.shape[1:])
        tiled = heads.swapaxes(0, 1).reshape(rows[first:].shape)
        return np.moveaxis(np.concatenate([rows[:first], tiled]), 0, axis)

    def tiled(self, part, array):
        first = 2 * self.keys * self.key_dim
        if part in ("in_proj_qkv.weight", "conv1d.weight"):
            return self.tile(array, 0, first, self.value_dim)
        if part == "in_proj_z.weight":
            return self.tile(array, 0, 0, self.value_dim)
        if part == "out_proj.weight":
            return self.tile(array, 1, 0, self.value_dim)
        return self.tile(array) if part != "norm.weight" else array

    def split(self, array):
        """Queries, keys and values of all key heads, and their gates, of rows by key head."""
        values = self.of_key * self.value_dim
        parts = np.split(array.reshape(self.keys, -1, array.shape[1]),
                         np.cumsum([self.key_dim, self.key_dim, values]), axis=1)
        rows = [part.reshape(-1, array.shape[1]) for part in parts]
        return np.concatenate(rows[:3]), rows[3]


def delta_tensors(config, tensors, whole=False, tiles=True, values=True):
    """Name in the file -> array. `whole`: as older files of qwen3next have it. Without `tiles` value
    heads stay where they are, which no file has; without `values` only places change."""
    heads, result, experts = Heads(config), {}, {}
    for name, tensor in tensors.items():
        array = tensor.double().numpy()
        if values and name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            array = np.float32(1) + array.astype(np.float32)
        if name in WHOLE_NAMES:
            result[WHOLE_NAMES[name]] = array
            continue
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        prefix = f"blk.{layer}."
        if ".experts." in rest:
            number, projection = rest.split(".experts.")[1].removesuffix(".weight").split(".")
            key = f"{prefix}{EXPERT_NAMES[projection]}.weight"
            experts.setdefault(key, {})[int(number)] = array
            continue
        if rest.startswith("linear_attn."):
            part = rest.removeprefix("linear_attn.")
            if part == "A_log" and values:
                array = -np.exp(array)
            if part == "conv1d.weight":
                array = array.squeeze(1)
            if config["model_type"] != "qwen3_next" and tiles:
                array = heads.tiled(part, array)
            if part == "in_proj_qkvz.weight" and not whole:
                result[f"{prefix}attn_qkv.weight"], result[f"{prefix}attn_gate.weight"] = heads.split(array)
                continue
        result[prefix + NAMES[rest]] = array
    for key, arrays in experts.items():
        result[key] = np.stack([arrays[i] for i in range(len(arrays))])
    return {name: np.ascontiguousarray(array, np.float32 if values else np.float64)
            for name, array in result.items()}


def add_config(writer, config, layers, interval):
    """`layers`: in the file, those that only draft too. `interval`: the key that older files have for
    the kinds of the layers."""
    rope = config["rope_parameters"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config["model_type"] != "qwen3_next":
        sections = rope.get("mrope_section", [11, 11, 10])
        writer.add_rope_dimension_sections([*sections, 0])
    if "intermediate_size" in config:
        writer.add_feed_forward_length(config["intermediate_size"])
    if config.get("num_experts"):
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
        if config.get("norm_topk_prob") is False:
            writer.add_expert_weights_norm(False)
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])
    writer.add_uint32(f"{writer.arch}.full_attention_interval", interval or 4)
    if interval is None:
        kinds = [kind == "linear_attention" for kind in config["layer_types"]]
        kinds += [False] * (layers - config["num_hidden_layers"])
        writer.add_array(f"{writer.arch}.attention.recurrent_layers", kinds)
    if layers > config["num_hidden_layers"]:
        writer.add_uint32(f"{writer.arch}.nextn_predict_layers", layers - config["num_hidden_layers"])


def write_delta_gguf(folder, path, kind_of, whole=False, tiles=True, interval=None, draft_layers=0):
    """Writes a folder as `path`. `kind_of(name, array)`: the type of a tensor. Returns the values that
    the file means, by name."""
    config, tensors = load_folder(folder)
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config["model_type"]])
    layers = config["num_hidden_layers"]
    add_config(writer, config, layers + draft_layers, interval)
    meant = {}
    for name, array in delta_tensors(config, tensors, whole, tiles).items():
        is_vector = array.ndim == 1 or "_norm." in name or "conv1d" in name
        kind = Type.F32 if is_vector else kind_of(name, array)
        data, meant[name] = quantize_with(array, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    for layer in range(layers, layers + draft_layers):
        for name in ("attn_norm", "nextn.enorm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.zeros(7, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


def write_meant(folder, meant, out):
    """The folder with the values that such a file means, as float32."""
    config, tensors = load_folder(folder)
    places, first = {}, 0
    for name, tensor in tensors.items():
        places[name] = torch.arange(first, first + tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
        first += tensor.numel()
    flat = np.concatenate([tensor.float().numpy().reshape(-1) for tensor in tensors.values()])
    for name, where in delta_tensors(config, places, values=False).items():
        if where.ndim > 1:
            flat[where.astype(np.int64)] = meant[name]
    result, first = {}, 0
    for name, tensor in tensors.items():
        result[name] = torch.from_numpy(flat[first:first + tensor.numel()].reshape(tensor.shape).copy())
        first += tensor.numel()
    pathlib.Path(out).mkdir()
    save_file(result, pathlib.Path(out, "model.safetensors"), metadata={"format": "pt"})
    pathlib.Path(out, "config.json").write_text(json.dumps({**config, "dtype": "float32"}))

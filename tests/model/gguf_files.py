# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folders written as GGUF files, by PyPI's `gguf`, as published converters lay them out."""

import enum
import json
import pathlib
import sys

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "quant"))
import gguf_blocks  # pylint: disable=wrong-import-position


class OwnType(enum.IntEnum):
    """What ggml has and PyPI's `gguf` has not."""
    Q2_0 = 42


gguf.GGML_QUANT_SIZES.setdefault(OwnType.Q2_0, (64, 18))

ARCHITECTURES = {"llama": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen2_moe": "qwen2moe",
                 "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "olmoe": "olmoe",
                 "granitemoe": "granitemoe", "gpt_oss": "gpt-oss", "dots1": "dots1",
                 "glm4_moe": "glm4moe", "minimax_m2": "minimax-m2",
                 "ernie4_5_moe": "ernie4_5-moe", "smollm3": "smollm3", "deepseek_v2": "deepseek2",
                 "deepseek_v3": "deepseek2", "glm4_moe_lite": "deepseek2", "lfm2_moe": "lfm2moe"}
INTERLEAVED = ("llama", "granitemoe", "smollm3")  # their q and k rows stand as RoPE over neighbours needs them
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.router.layer": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    "conv.conv": "shortconv.conv", "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj", "feed_forward.gate": "ffn_gate_inp",
    "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down",
}
OUTER_NAMES = {"model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
               "model.norm.weight": "output_norm.weight",
               "model.embedding_norm.weight": "token_embd_norm.weight"}
EXPERT_NAMES = {"gate_proj": "ffn_gate_exps", "w1": "ffn_gate_exps", "up_proj": "ffn_up_exps",
                "w3": "ffn_up_exps", "down_proj": "ffn_down_exps", "w2": "ffn_down_exps"}


def load_folder(folder):
    """config.json and the tensors as torch holds them, experts one by one."""
    config = json.loads(pathlib.Path(folder, "config.json").read_text())
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        tensors.update(load_file(path))
    split = {}
    for name, tensor in tensors.items():
        if name.endswith(".input_linear.weight"):
            block = name.removesuffix("input_linear.weight")
            for expert, rows in enumerate(tensor):
                gate, up = rows.chunk(2)
                split[f"{block}experts.{expert}.gate_proj.weight"] = gate
                split[f"{block}experts.{expert}.up_proj.weight"] = up
        elif name.endswith(".output_linear.weight"):
            block = name.removesuffix("output_linear.weight")
            for expert, rows in enumerate(tensor):
                split[f"{block}experts.{expert}.down_proj.weight"] = rows
        elif name.endswith((".gate_up_proj", ".gate_up_proj_bias")) and config["model_type"] == "gpt_oss":
            block, kind = name.rsplit(".gate_up_proj", 1)
            for expert, rows in enumerate(tensor if kind else tensor.transpose(1, 2)):
                for turn, projection in enumerate(("gate_proj", "up_proj")):
                    split[f"{block}.{expert}.{projection}.{'bias' if kind else 'weight'}"] = rows[turn::2]
        elif name.endswith((".down_proj", ".down_proj_bias")) and config["model_type"] == "gpt_oss":
            block, kind = name.rsplit(".down_proj", 1)
            for expert, rows in enumerate(tensor if kind else tensor.transpose(1, 2)):
                split[f"{block}.{expert}.down_proj.{'bias' if kind else 'weight'}"] = rows
        else:
            split[name] = tensor
    return config, split


def interleave(rows, heads):
    """Puts row i of each head's first half and row i of its second half side by side."""
    shape = rows.shape
    return rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def layer_name(config, rest):
    """A tensor's name behind its layer's, of one that is no expert's."""
    module, suffix = rest.rsplit(".", 1)
    if suffix == "sinks":
        return "attn_sinks.weight"
    if suffix in ("e_score_correction_bias", "expert_bias"):
        return "exp_probs_b.bias"
    if module == "post_attention_layernorm" and config["model_type"] in ("gpt_oss", "glm4_moe"):
        return f"post_attention_norm.{suffix}"
    return f"{LAYER_NAMES[module]}.{suffix}"


def gguf_tensors(config, tensors, splits_kv_b=False):
    """(name in the file, array or list of the experts' arrays) as float32, names as GGUF has them."""
    architecture = ARCHITECTURES[config["model_type"]]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    result, experts = {}, {}
    for name, tensor in tensors.items():
        array = tensor.float().numpy()
        if name in OUTER_NAMES:
            result[OUTER_NAMES[name]] = array
            continue
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        module, suffix = rest.rsplit(".", 1)
        if ".experts." in module:
            number, projection = module.split(".experts.")[1].split(".")
            key = f"blk.{layer}.{EXPERT_NAMES[projection]}.{suffix}"
            experts.setdefault(key, {})[int(number)] = array
            continue
        if architecture in INTERLEAVED and module in ("self_attn.q_proj", "self_attn.k_proj"):
            array = interleave(array, heads if module.endswith("q_proj") else kv_heads)
        if module == "mlp.shared_expert_gate" or suffix == "e_score_correction_bias":
            array = array.reshape(-1)
        if module == "conv.conv":
            array = array.squeeze(1)
        if module == "self_attn.kv_b_proj" and splits_kv_b:
            heads_of = array.reshape(heads, -1, array.shape[1])
            nope = config["qk_nope_head_dim"]
            result[f"blk.{layer}.attn_k_b.weight"] = np.ascontiguousarray(
                heads_of[:, :nope].swapaxes(1, 2))
            result[f"blk.{layer}.attn_v_b.weight"] = np.ascontiguousarray(heads_of[:, nope:])
            continue
        result[f"blk.{layer}.{layer_name(config, rest)}"] = np.ascontiguousarray(array)
    for key, arrays in experts.items():
        result[key] = np.stack([arrays[i] for i in range(len(arrays))])
    return result


def add_latents(writer, config, rope, splits_kv_b):
    key, value = config["qk_nope_head_dim"] + config["qk_rope_head_dim"], config["v_head_dim"]
    if splits_kv_b:
        writer.add_key_length(config["kv_lora_rank"] + config["qk_rope_head_dim"])
        writer.add_value_length(config["kv_lora_rank"])
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(value)
    else:
        writer.add_key_length(key)
        writer.add_value_length(value)
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_rope_dimension_count(config["qk_rope_head_dim"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def add_config(writer, config, context=None, splits_kv_b=False):
    architecture = ARCHITECTURES[config["model_type"]]
    rope = config.get("rope_parameters") or {}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(context or config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    if architecture == "lfm2moe":
        writer.add_head_count_kv([0 if kind == "conv" else kv_heads
                                  for kind in config["layer_types"]])
        writer.add_shortconv_l_cache(config["conv_L_cache"])
        writer.add_leading_dense_block_count(config["num_dense_layers"])
    else:
        writer.add_head_count_kv(1 if splits_kv_b else kv_heads)
    if architecture == "deepseek2":
        add_latents(writer, config, rope, splits_kv_b)
    else:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    writer.add_layer_norm_rms_eps(config.get("norm_eps") or config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
    writer.add_feed_forward_length(config["intermediate_size"])
    experts = (config.get("num_experts") or config.get("num_local_experts")
               or config.get("n_routed_experts") or config.get("moe_num_experts") or 0)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.get("moe_k") or config["num_experts_per_tok"])
        if "routed_scaling_factor" in config:
            writer.add_expert_weights_scale(config["routed_scaling_factor"])
            writer.add_expert_gating_func(
                gguf.ExpertGatingFuncType.SOFTMAX if config["model_type"] == "deepseek_v2"
                else gguf.ExpertGatingFuncType.SIGMOID)
            if "n_group" in config:
                writer.add_expert_group_count(config["n_group"])
                writer.add_expert_group_used_count(config["topk_group"])
        shared = config.get("n_shared_experts") or config.get("moe_num_shared_experts")
        if shared:
            writer.add_expert_shared_count(shared)
        if "norm_topk_prob" in config:
            writer.add_expert_weights_norm(config["norm_topk_prob"])
        if "moe_intermediate_size" in config:
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        if "shared_expert_intermediate_size" in config:
            writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if architecture == "gpt-oss":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if config.get("clip_qkv"):
        writer.add_clamp_kqv(config["clip_qkv"])
    if architecture == "granitemoe":
        writer.add_attention_scale(config.get("attention_multiplier", 1.0))
        writer.add_embedding_scale(config.get("embedding_multiplier", 1.0))
        writer.add_residual_scale(config.get("residual_multiplier", 1.0))
        writer.add_logit_scale(config.get("logits_scaling", 1.0))


def fits(array, kind):
    block_size, _ = gguf.GGML_QUANT_SIZES[kind]
    return array.ndim >= 2 and array.shape[-1] % block_size == 0


def write_gguf(folder, path, kind_of, add_more=None, splits=None, single_experts=False,
               raw=lambda name: None, splits_kv_b=False):
    """Writes a folder as `path`. `kind_of(name, array)`: the type of a tensor. `raw(name)`: the bytes
    and the type of one that is given whole. `single_experts`: one tensor an expert, as files from
    before 2024 have them. `splits_kv_b`: the matrix of latent attention as its two halves. Returns the values that the file means, by
    GGUF name."""
    config, tensors = load_folder(folder)
    options = {} if splits is None else dict(split_max_tensors=splits)
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config["model_type"]], **options)
    add_config(writer, config, splits_kv_b=splits_kv_b)
    writer.add_bos_token_id(config.get("bos_token_id") or 0)
    eos = config.get("eos_token_id")
    if isinstance(eos, int):
        writer.add_eos_token_id(eos)
    if add_more:
        add_more(writer)
    meant = {}
    for name, array in gguf_tensors(config, tensors, splits_kv_b).items():
        if raw(name) is not None:
            data, kind = raw(name)
            writer.add_tensor(name, data, raw_dtype=kind)
            continue
        kind = kind_of(name, array)
        data, meant[name] = quantize_with(array, kind)
        if kind == Type.NVFP4 and name != "token_embd.weight":
            # A scale for each matrix, or expert; that of the activations means nothing here.
            scales = np.linspace(0.5, 2, len(array) if "_exps." in name else 1, dtype=np.float32)
            meant[name] *= scales.reshape(-1, *(1,) * (array.ndim - 1))
            stem = name.removesuffix("weight")
            writer.add_tensor(stem + "scale", scales)
            writer.add_tensor(stem + "input_scale", 3 * scales)
        if single_experts and "_exps." in name:
            for expert, part in enumerate(data):
                writer.add_tensor(name.replace("_exps", f".{expert}"), part, raw_dtype=kind)
        else:
            writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


def quantize_with(array, kind):
    """The bytes of an array in a type, and the float32 values that they mean. Types that PyPI's `gguf`
    cannot quantize to get random blocks with scales of a size that a model survives."""
    try:
        data = gguf.quants.quantize(array, kind)
    except (NotImplementedError, KeyError):
        data = random_blocks(array.shape, kind)
    if data.dtype != np.uint8:
        return data, gguf.quants.dequantize(data, kind).astype(np.float32)
    return (data.reshape(*array.shape[:-1], -1), dequantize(data, kind).reshape(array.shape))


def dequantize(data, kind):
    """float32 [blocks, values], of types that PyPI's `gguf` lacks, too."""
    blocks = data.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
    if kind not in (Type.Q1_0, OwnType.Q2_0):
        return gguf.quants.dequantize(blocks, kind).astype(np.float32)
    scales, numbers = blocks[:, :2].copy().view("<f2").astype(np.float32), blocks[:, 2:, None]
    if kind == Type.Q1_0:
        bits = numbers >> np.arange(8, dtype=np.uint8) & 1
        return scales * (2 * bits.reshape(len(blocks), -1).astype(np.float32) - 1)
    pairs = numbers >> np.arange(0, 8, 2, dtype=np.uint8) & 3
    return scales * (pairs.reshape(len(blocks), -1).astype(np.float32) - 1)


def random_blocks(shape, kind):
    random = np.random.default_rng(int(np.prod(shape)) + kind)
    count = int(np.prod(shape)) // gguf.GGML_QUANT_SIZES[kind][0]
    return gguf_blocks.random_blocks(random, kind.name, count).reshape(*shape[:-1], -1)


def write_meant(folder, meant, out):
    """The folder with the values that a GGUF means, as float32: what transformers can read."""
    from safetensors.torch import save_file
    config, tensors = load_folder(folder)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    interleaved = ARCHITECTURES[config["model_type"]] in INTERLEAVED
    names = gguf_names(config, tensors)
    result = {}
    for name, tensor in tensors.items():
        gguf_name, expert = names[name]
        array = meant[gguf_name] if expert is None else meant[gguf_name][expert]
        if interleaved and ".attn_q." in gguf_name or interleaved and ".attn_k." in gguf_name:
            count = heads if ".attn_q." in gguf_name else kv_heads
            array = array.reshape(count, array.shape[0] // count // 2, 2, *array.shape[1:])
            array = array.swapaxes(1, 2)
        result[name] = torch.from_numpy(np.array(array, np.float32)).reshape(tensor.shape)
    result = fuse_granite(config, result)
    pathlib.Path(out).mkdir()
    save_file({name: tensor.contiguous() for name, tensor in result.items()},
              pathlib.Path(out, "model.safetensors"), metadata={"format": "pt"})
    pathlib.Path(out, "config.json").write_text(json.dumps({**config, "dtype": "float32"}))


def write_packed(folder, kind, kind_of, out):
    """The folder in the format `pack-quantized`, with the integers and scales of the GGUF's blocks."""
    from safetensors.torch import save_file
    config, tensors = load_folder(folder)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    interleaved = ARCHITECTURES[config["model_type"]] in INTERLEAVED
    names, arrays = gguf_names(config, tensors), gguf_tensors(config, tensors)
    bits = 4 if kind == Type.Q4_0 else 8
    result, ignored = {}, []
    for name, tensor in tensors.items():
        gguf_name, expert = names[name]
        array = arrays[gguf_name]
        module = name.removesuffix(".weight")
        if kind_of(gguf_name, array) != kind:
            result[name] = tensor.float()
            if tensor.dim() > 1:
                ignored.append(module)
            continue
        data, meant = quantize_with(array, kind)
        scales = group_scales(data, kind).reshape(*array.shape[:-1], -1)
        wide = np.repeat(scales, 32, axis=-1)
        values = np.rint(np.divide(meant, wide, out=np.zeros_like(meant), where=wide != 0))
        values, scales = (values, scales) if expert is None else (values[expert], scales[expert])
        if interleaved and (".attn_q." in gguf_name or ".attn_k." in gguf_name):
            count = heads if ".attn_q." in gguf_name else kv_heads
            back = lambda rows: rows.reshape(
                count, rows.shape[0] // count // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)
            values, scales = back(values), back(scales)
        per_word = 32 // bits
        offset = (values.astype(np.int64) + (1 << (bits - 1))).reshape(
            values.shape[0], -1, per_word)
        words = (offset << (bits * np.arange(per_word))).sum(-1).astype(np.uint32).view(np.int32)
        result[f"{module}.weight_packed"] = torch.from_numpy(words.copy())
        dtype = {Type.MXFP4: torch.bfloat16, Type.IQ4_XS: torch.float32}.get(kind, torch.float16)
        result[f"{module}.weight_scale"] = torch.from_numpy(scales.copy()).to(dtype)
        result[f"{module}.weight_shape"] = torch.tensor(values.shape, dtype=torch.int64)
    pathlib.Path(out).mkdir()
    save_file({name: tensor.contiguous() for name, tensor in result.items()},
              pathlib.Path(out, "model.safetensors"), metadata={"format": "pt"})
    quantization = {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "quantization_status": "compressed", "ignore": ignored,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": bits, "type": "int", "symmetric": True, "group_size": 32,
            "strategy": "group", "dynamic": False}}}}
    pathlib.Path(out, "config.json").write_text(
        json.dumps({**config, "quantization_config": quantization}))


def group_scales(data, kind):
    """The scale of every 32 values of blocks that are symmetric groups, as float32."""
    blocks = data.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
    if kind == Type.MXFP4:
        return np.exp2(blocks[:, 0].astype(np.float64) - 128).astype(np.float32)
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if kind != Type.IQ4_XS:
        return d
    high = blocks[:, 2:4].copy().view(np.uint16)
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], -1).reshape(-1, 8)
    scales = low | ((high >> np.arange(0, 16, 2, dtype=np.uint16)) & 3).astype(np.uint8) << 4
    return d * (scales.astype(np.float32) - 32)


def gguf_names(config, tensors):
    names = {}
    for name in tensors:
        if not name.startswith("model.layers."):
            names[name] = (OUTER_NAMES[name], None)
            continue
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        module, suffix = rest.rsplit(".", 1)
        if ".experts." in module:
            number, projection = module.split(".experts.")[1].split(".")
            names[name] = (f"blk.{layer}.{EXPERT_NAMES[projection]}.{suffix}", int(number))
        else:
            names[name] = (f"blk.{layer}.{layer_name(config, rest)}", None)
    return names


def fuse_granite(config, tensors):
    if config["model_type"] != "granitemoe":
        return tensors
    result = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}.block_sparse_moe."
        count = config["num_local_experts"]
        part = lambda expert, name: tensors[f"{block}experts.{expert}.{name}.weight"]
        result[f"{block}input_linear.weight"] = torch.stack(
            [torch.cat([part(e, "gate_proj"), part(e, "up_proj")]) for e in range(count)])
        result[f"{block}output_linear.weight"] = torch.stack(
            [part(e, "down_proj") for e in range(count)])
    return result

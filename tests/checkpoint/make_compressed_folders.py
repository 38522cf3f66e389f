# SPDX-License-Identifier: Apache-2.0
"""Makes the compressed-tensors folders of tests/data/quantized. Each version of the package makes
those that it packs in its own way (0.20, 0.17, 0.14; an older one by PYTHONPATH):

    make_compressed_folders.py OUT
"""

import re
import sys

import compressed_tensors
import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams
from quantized_folders import TinyModel, write_folder

VERSION = tuple(int(part) for part in compressed_tensors.__version__.split(".")[:2])


def group_extremes(weight, args):
    if args.strategy == "tensor":
        return weight.amin().reshape(1), weight.amax().reshape(1)
    if args.strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    grouped = weight.reshape(weight.shape[0], -1, args.group_size)
    return grouped.amin(2), grouped.amax(2)


def widened(parts):
    """Scales in float32, in which the writer's dequantization then computes."""
    return {name: tensor.float() if name == "weight_scale" and tensor.is_floating_point()
            and tensor.element_size() > 1 else tensor for name, tensor in parts.items()}


def new_compressor(name):
    from compressed_tensors.compressors import BaseCompressor
    return BaseCompressor.get_value_from_registry(name)


def compress(weight, scheme, name):
    """What the package stores, and what it means."""
    args = scheme.weights
    scale, zero_point = calculate_qparams(*group_extremes(weight, args), args)
    parts = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero_point}
    compressor = new_compressor(name)
    if name.startswith("nvfp4"):
        parts["weight_global_scale"] = (448 * 6 / weight.abs().max().float()).reshape(1)
        scale, _ = calculate_qparams(*group_extremes(weight, args), args,
                                     global_scale=parts["weight_global_scale"])
        parts["weight_scale"] = scale
    stored = compressor.compress(parts, scheme)
    meant = compressor.decompress(widened(stored), scheme)["weight"].float()
    return stored, meant


def arguments(**fields):
    return QuantizationArgs(**({"symmetric": True, "type": "int"} | fields))


def make(out, name, model, format_name, groups, config, left_out=(), more=None):
    """`groups`: targets and QuantizationScheme fields by name; the first that fits a module. `more`:
    what each module has besides."""
    stored, meant = {}, {}
    for module, weight in model.linear.items():
        if any(re.match(pattern, module) for pattern in left_out):
            continue
        fields = next(fields for target, fields in groups if re.match(target, module))
        scheme = QuantizationScheme(targets=["Linear"], **fields)
        parts, meant[module] = compress(weight, scheme, format_name)
        stored |= {f"{module}.{part}": tensor for part, tensor in parts.items()
                   if part != "weight_zero_point" or not scheme.weights.symmetric}
        stored |= {f"{module}.{part}": tensor for part, tensor in (more or {}).items()}
    config = {
        "quant_method": "compressed-tensors", "format": format_name,
        "quantization_status": "compressed", "version": compressed_tensors.__version__,
        "ignore": ["re:" + pattern for pattern in left_out] + ["lm_head"],
        "config_groups": {f"group_{i}": QuantizationScheme(
            targets=["re:" + target], **fields).model_dump(mode="json")
            for i, (target, fields) in enumerate(groups)},
    } | config
    write_folder(f"{out}/{name}", model, stored, meant, config)


def make_new(out):
    asymmetric = {"symmetric": False}
    make(out, "ct_bits_dense", TinyModel("llama", 21, hidden_size=72, intermediate_size=40),
         "pack-quantized", [
             (r".*q_proj", {"weights": arguments(num_bits=3, strategy="channel")}),
             (r".*k_proj", {"weights": arguments(num_bits=5, strategy="channel", **asymmetric)}),
             (r".*v_proj", {"weights": arguments(num_bits=6, strategy="channel")}),
             (r".*o_proj", {"weights": arguments(num_bits=7, strategy="channel", **asymmetric)}),
             (r".*(gate|up)_proj", {"weights": arguments(num_bits=4, strategy="group",
                                                         group_size=24)}),
             (r".*down_proj", {"weights": arguments(num_bits=2, strategy="channel",
                                                    **asymmetric)})], {})
    tokens = QuantizationArgs(num_bits=8, type="int", strategy="token", dynamic=True)
    make(out, "ct_w8a8", TinyModel("qwen3", 22), "int-quantized", [
        (r".*", {"weights": arguments(num_bits=8, strategy="channel"),
                 "input_activations": tokens})], {})
    static = QuantizationArgs(num_bits=8, type="float", strategy="tensor")

    model = TinyModel("llama", 23)
    model.others["model.layers.0.self_attn.k_scale"] = torch.tensor([0.01])
    model.others["model.layers.0.self_attn.v_scale"] = torch.tensor([0.01])
    make(out, "ct_fp8_static", model, "float-quantized", [
        (r".*", {"weights": arguments(num_bits=8, type="float", strategy="tensor"),
                 "input_activations": static})],
         {"kv_cache_scheme": static.model_dump(mode="json")},
         more={"input_scale": torch.tensor([0.02])})
    make(out, "ct_nvfp4", TinyModel("qwen3", 24), "nvfp4-pack-quantized", [
        (r".*", {"weights": arguments(num_bits=4, type="float", strategy="tensor_group",
                                      group_size=16)})], {}, left_out=(r".*o_proj",))
    make(out, "ct_mxfp4", TinyModel("mixtral", 25), "mxfp4-pack-quantized", [
        (r".*", {"weights": arguments(num_bits=4, type="float", strategy="group", group_size=32,
                                      scale_dtype=torch.uint8)})], {})
    make(out, "ct_mxfp8", TinyModel("llama", 26), "mxfp8-quantized", [
        (r".*", {"weights": arguments(num_bits=8, type="float", strategy="group", group_size=32,
                                      scale_dtype=torch.uint8)})], {})


def make_padded(out):
    asymmetric = {"symmetric": False}
    make(out, "ct_bits_padded", TinyModel("llama", 31, hidden_size=72, intermediate_size=40),
         "pack-quantized", [
             (r".*q_proj", {"weights": arguments(num_bits=3, strategy="channel")}),
             (r".*k_proj", {"weights": arguments(num_bits=5, strategy="channel", **asymmetric)}),
             (r".*v_proj", {"weights": arguments(num_bits=6, strategy="channel", **asymmetric)}),
             (r".*o_proj", {"weights": arguments(num_bits=7, strategy="channel", **asymmetric)}),
             (r".*", {"weights": arguments(num_bits=3, strategy="channel", **asymmetric)})], {})


def make_old(out):
    from compressed_tensors.compressors.quantized_compressors import PackedQuantizationCompressor
    from compressed_tensors.compressors.sparse_compressors.sparse_24_bitmask import (
        Sparse24BitMaskTensor)
    model = TinyModel("llama", 41, intermediate_size=64)
    args = arguments(num_bits=4, strategy="group", group_size=32, actorder="group")
    compressor = PackedQuantizationCompressor()
    stored, meant = {}, {}
    for module, weight in model.linear.items():
        cols = weight.shape[1]
        group_of = (torch.arange(cols) // 32)[torch.randperm(cols, generator=model.generator)]
        order = torch.argsort(group_of, stable=True)
        scale, zero_point = calculate_qparams(*group_extremes(weight[:, order], args), args)
        parts = compressor.compress_weight(weight, scale, args, zero_point, group_of.int())
        numbers = quantize(weight, scale, zero_point, args, dtype=torch.int8, g_idx=group_of.int())
        meant[module] = dequantize(numbers, scale.float(), zero_point, args, dtype=torch.float32,
                                   g_idx=group_of.int()).float()
        parts |= {"weight_scale": scale, "weight_g_idx": group_of.int()}
        stored |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized",
              "quantization_status": "compressed", "ignore": ["lm_head"],
              "config_groups": {"group_0": QuantizationScheme(
                  targets=["Linear"], weights=args).model_dump(mode="json")}}
    write_folder(f"{out}/ct_act_order", model, stored, meant, config)

    model = TinyModel("llama", 42)
    stored, meant = {}, {}
    for module, weight in model.linear.items():
        kept = weight.float().abs().reshape(-1, 4).topk(2, dim=1).indices
        mask = torch.zeros(weight.numel() // 4, 4).scatter_(1, kept, 1).reshape(weight.shape)
        pruned = weight * mask.half()
        sparse = Sparse24BitMaskTensor.from_dense(pruned)
        stored |= sparse.dict(module + ".weight")
        meant[module] = sparse.decompress().float()
    config = {"quant_method": "compressed-tensors", "format": "dense", "ignore": ["lm_head"],
              "quantization_status": "compressed", "config_groups": {},
              "sparsity_config": {"format": "sparse-24-bitmask", "sparsity_structure": "2:4",
                                  "global_sparsity": 0.5, "registry_requires_subclass": False,
                                  "targets": ["Linear"], "ignore": ["lm_head"]}}
    write_folder(f"{out}/ct_sparse24", model, stored, meant, config)


if __name__ == "__main__":
    {14: make_old, 17: make_padded}.get(VERSION[1], make_new)(sys.argv[1])

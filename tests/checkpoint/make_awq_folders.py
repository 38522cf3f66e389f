# SPDX-License-Identifier: Apache-2.0
"""Makes the AWQ and AutoRound folders of tests/data/quantized with AutoAWQ 0.2.7.post3 and auto-round
0.16.1 (transformers 5):

    make_awq_folders.py OUT
"""

import sys

import torch
from awq.modules.linear.gemm import WQLinear_GEMM
from awq.utils.packing_utils import reverse_awq_order, unpack_awq
from quantized_folders import TinyModel, write_folder


def pseudo_quantize(weight, group_size):
    """As AutoAWQ's: scales and zero points [rows, groups], asymmetric, and the weights they mean."""
    rows, cols = weight.shape
    grouped = weight.float().reshape(rows, -1, group_size)
    low, high = grouped.amin(2, keepdim=True), grouped.amax(2, keepdim=True)
    scales = ((high - low).clamp(min=1e-5) / 15).half().float()
    zeros = (-(low / scales).round()).clamp(0, 15)
    number = ((grouped / scales).round() + zeros).clamp(0, 15)
    meant = ((number - zeros) * scales).reshape(rows, cols)
    return meant, scales[:, :, 0], zeros[:, :, 0]


def pack(weight, group_size):
    size = weight.shape[1] if group_size == -1 else group_size
    meant, scales, zeros = pseudo_quantize(weight, size)
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = meant
    packed = WQLinear_GEMM.from_linear(linear, 4, size, scales=scales.T.contiguous(),
                                       zeros=zeros.T.contiguous())
    # The writer's own dequantization (awq.utils.packing_utils.dequantize_gemm), in float32.
    numbers, zero_points = unpack_awq(packed.qweight, packed.qzeros, 4)
    numbers, zero_points = reverse_awq_order(numbers, zero_points, 4)
    numbers, zero_points = torch.bitwise_and(numbers, 15), torch.bitwise_and(zero_points, 15)
    restored = ((numbers.float() - zero_points.repeat_interleave(size, 0).float())
                * packed.scales.float().repeat_interleave(size, 0)).T.contiguous()
    if not torch.equal(restored, meant):
        raise SystemExit("the packed numbers are not those that were meant")
    return {"qweight": packed.qweight, "qzeros": packed.qzeros, "scales": packed.scales}, meant


def make(out, name, model, group_size, left_out):
    stored, meant = {}, {}
    for module, weight in model.linear.items():
        if any(part in module for part in left_out):
            continue
        parts, meant[module] = pack(weight, group_size)
        stored |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    config = {"quant_method": "awq", "zero_point": True, "group_size": group_size, "bits": 4,
              "version": "gemm", "modules_to_not_convert": left_out or None}
    write_folder(f"{out}/{name}", model, stored, meant, config)


def auto_round_linear(backend, weight, bits, group_size, sym):
    """What save_quantized_as_autoround packs a layer into, and what it means in float32."""
    from auto_round.export.export_to_autoround.export import dynamic_import_quant_linear_for_packing
    layer_class = dynamic_import_quant_linear_for_packing(backend, bits, group_size, sym)
    rows, cols = weight.shape
    grouped = weight.float().reshape(rows, -1, group_size)
    if sym:
        scales = (grouped.abs().amax(2) / 2 ** (bits - 1)).half().float()
        zeros = torch.full_like(scales, 2 ** (bits - 1))
    else:
        low, high = grouped.amin(2), grouped.amax(2)
        scales = ((high - low) / (2**bits - 1)).half().float()
        zeros = (-low / scales).round().clamp(0, 2**bits - 1)
    number = ((grouped / scales[:, :, None]).round() + zeros[:, :, None]).clamp(0, 2**bits - 1)
    meant = ((number - zeros[:, :, None]) * scales[:, :, None]).reshape(rows, cols)
    linear = torch.nn.Linear(cols, rows, bias=False)
    linear.weight.data = meant.clone()
    packed = layer_class(bits, group_size, cols, rows, False)
    packed.device = torch.device("cpu")  # one of its classes asks for it, and has none
    packed.pack(linear, scales, zeros, None, device="cpu")
    parts = {part: getattr(packed, part) for part in ("qweight", "qzeros", "scales")}
    if getattr(packed, "g_idx", None) is not None:
        parts["g_idx"] = packed.g_idx.int()
    parts["scales"] = parts["scales"].half()
    return parts, meant


def make_auto_round(out, name, model, backend, bits, group_size, sym, extra):
    stored, meant = {}, {}
    for module, weight in model.linear.items():
        own = {"bits": bits, "group_size": group_size, "sym": sym} | extra.get(module, {})
        if own["bits"] > 8:
            continue
        parts, meant[module] = auto_round_linear(backend, weight, own["bits"], own["group_size"],
                                                 own["sym"])
        stored |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    config = {"quant_method": "auto-round", "packing_format": backend, "bits": bits,
              "group_size": group_size, "sym": sym, "data_type": "int", "autoround_version": "0.16.1",
              "extra_config": extra, "block_name_to_quantize": "model.layers"}
    write_folder(f"{out}/{name}", model, stored, meant, config)


def main():
    out = sys.argv[1]
    make(out, "awq", TinyModel("qwen2", 11), 32, ["down_proj"])
    make(out, "awq_moe", TinyModel("mixtral", 12), -1, ["self_attn"])
    layer = "model.layers.0."
    make_auto_round(out, "auto_round_v1", TinyModel("llama", 13), "auto_round:auto_gptq", 4, 32,
                    True, {layer + "mlp.down_proj": {"bits": 8}, layer + "self_attn.o_proj": {
                        "bits": 16, "data_type": "float"}})
    make_auto_round(out, "auto_round_v2", TinyModel("qwen3", 14), "auto_round", 2, 32, False,
                    {layer + "mlp.gate_proj": {"bits": 4}, layer + "mlp.up_proj": {"bits": 4}})


if __name__ == "__main__":
    main()

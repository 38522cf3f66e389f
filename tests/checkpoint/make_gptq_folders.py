# SPDX-License-Identifier: Apache-2.0
"""Makes the GPTQ folders of tests/data/quantized with gptqmodel 7.3.4 (numpy 2.2.6):

    make_gptq_folders.py OUT
"""

import re
import sys

import torch
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.quantization.config import FORMAT
from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
from gptqmodel.quantization import QuantizeConfig
from quantized_folders import TinyModel, write_folder


def group_parameters(weight, bits, group_of, groups, sym):
    """Scales [groups, rows] in float16 and zero points, from the extremes of each group."""
    scales, zeros = [], []
    for group in range(groups):
        columns = weight[:, group_of == group].float()
        if sym:
            scale = (columns.abs().amax(1) / (2 ** (bits - 1) - 0.5)).half()
            zero = torch.full_like(scale, 2 ** (bits - 1))
        else:
            low, high = columns.amin(1).clamp(max=0), columns.amax(1).clamp(min=0)
            # Some groups begin at zero: a zero point of 0, which version 1 stores as all ones.
            low[::5] = 0
            scale = ((high - low) / (2**bits - 1)).clamp(min=1e-4).half()
            zero = (-low / scale.float()).round().clamp(0, 2**bits - 1)
        scales.append(scale)
        zeros.append(zero)
    return torch.stack(scales), torch.stack(zeros)


def pack(weight, bits, group_size, sym, version, generator, act_order):
    rows, cols = weight.shape
    size = cols if group_size == -1 else group_size
    groups = -(-cols // size)
    group_of = torch.arange(cols) // size
    if act_order:
        group_of = group_of[torch.randperm(cols, generator=generator)]
    scales, zeros = group_parameters(weight, bits, group_of, groups, sym)
    group_of = group_of.int()
    # Numbers that the range holds: pack() rounds, and does not clamp.
    number = (weight.float() / scales.float().T[:, group_of.long()]
              + zeros.float().T[:, group_of.long()]).round().clamp(0, 2**bits - 1)
    number -= zeros.float().T[:, group_of.long()]
    linear = torch.nn.Linear(cols, rows, bias=False)
    linear.weight.data = number * scales.float().T[:, group_of.long()]
    module = TorchLinear(bits=bits, group_size=group_size, sym=sym, desc_act=act_order,
                         in_features=cols, out_features=rows, format=version, register_buffers=True)
    module.pack(linear, scales.T.float(), zeros.T.float(), group_of)
    # The writer's own dequantization, with its float16 scales widened.
    module.scales = module.scales.float()
    meant = module.dequantize_weight().T.contiguous().float()
    if not torch.equal(meant, linear.weight.data):
        raise SystemExit("the packed numbers are not those that were meant")
    module.scales = module.scales.half()
    if version == FORMAT.GPTQ:
        convert_gptq_v2_to_v1_format_module(module, QuantizeConfig(bits=bits))
    return {"qweight": module.qweight, "qzeros": module.qzeros, "scales": module.scales,
            "g_idx": module.g_idx.int()}, meant


def make(out, name, model, version, bits, group_size, sym, act_order=False, dynamic=None):
    stored, meant = {}, {}
    generator = torch.Generator().manual_seed(len(name))
    for module, weight in model.linear.items():
        own = {"bits": bits, "group_size": group_size, "sym": sym}
        for pattern, fields in (dynamic or {}).items():
            if re.match(pattern.removeprefix("-:").removeprefix("+:"), module):
                own = None if pattern.startswith("-:") else own | fields
                break
        if own is None:
            continue
        parts, meant[module] = pack(weight, own["bits"], own["group_size"], own["sym"], version,
                                    generator, act_order)
        stored |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    config = {"quant_method": "gptq", "checkpoint_format": version.value, "bits": bits,
              "group_size": group_size, "sym": sym, "desc_act": act_order, "pack_dtype": "int32",
              "lm_head": "lm_head" in meant, "dynamic": dynamic,
              "meta": {"quantizer": ["gptqmodel:7.3.4"]}}
    write_folder(f"{out}/{name}", model, stored, meant, config)


def main():
    out = sys.argv[1]
    make(out, "gptq_v1_asymmetric", TinyModel("llama", 1), FORMAT.GPTQ, 4, 32, False)
    make(out, "gptq_v2_int8", TinyModel("qwen3", 2, tie_word_embeddings=False,
                                        intermediate_size=32), FORMAT.GPTQ_V2, 8, 64, True)
    make(out, "gptq_v1_act_order", TinyModel("qwen3_moe", 3, moe_intermediate_size=64), FORMAT.GPTQ, 4, 32, True,
         act_order=True)
    make(out, "gptq_v1_mixed", TinyModel("llama", 4), FORMAT.GPTQ, 4, -1, True, dynamic={
        r".*\.q_proj$": {"bits": 2, "group_size": 32}, r"+:.*\.k_proj$": {"bits": 3, "sym": False},
        r".*\.v_proj$": {"bits": 8, "sym": False, "group_size": 32},
        r".*\.o_proj$": {"group_size": 16}, r"-:.*\.down_proj$": {}})
    make(out, "gptq_p", TinyModel("mixtral", 5), FORMAT.GPTQ_P, 5, 32, False, dynamic={
        r".*\.w2$": {"bits": 6, "sym": True}, r".*\.(k|v)_proj$": {"bits": 7},
        r".*\.o_proj$": {"bits": 3}})


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Makes the ModelOpt folder of tests/data/quantized with nvidia-modelopt 0.47:

    make_modelopt_folder.py OUT
"""

import json
import pathlib
import sys

import torch
from modelopt.torch.quantization.qtensor import NVFP4QTensor
from quantized_folders import TinyModel, write_folder


def main():
    model = TinyModel("llama", 51)
    stored, meant = {}, {}
    for module, weight in model.linear.items():
        if module.endswith("o_proj"):
            continue
        packed, scale, factor = NVFP4QTensor.quantize(weight, 16)
        meant[module] = packed.dequantize(torch.bfloat16, scale=scale, double_scale=factor,
                                          block_sizes={-1: 16}).float()
        stored |= {module + ".weight": packed._quantized_data, module + ".weight_scale": scale,
                   module + ".weight_scale_2": factor.float().reshape(()),
                   module + ".input_scale": torch.tensor(0.01)}
    folder = pathlib.Path(sys.argv[1]) / "modelopt_nvfp4"
    write_folder(folder, model, stored, meant, None)
    # As its export writes it beside a config.json without a quantization_config.
    (folder / "hf_quant_config.json").write_text(json.dumps({
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
                         "exclude_modules": ["lm_head", "model.layers.*.self_attn.o_proj"]},
    }, indent=1) + "\n")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Makes fp8_stacked of tests/data/quantized: 8-bit floats in blocks, as transformers 5.17 quantizes
and saves a Gemma 4 with experts, which stay in one tensor a layer:

    python3 tests/checkpoint/make_stacked_folder.py FOLDER

The weights that expected.json has are those of transformers' own Fp8Dequantize.
"""

import json
import pathlib
import sys
import tempfile

import torch
from quantized_folders import VOCAB, write_folder
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

BLOCK = [16, 16]
HIDDEN, WIDTH, EXPERTS = 32, 16, 2
CONFIG = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16, "intermediate_size": WIDTH,
    "moe_intermediate_size": WIDTH, "num_experts": EXPERTS, "top_k_experts": 2,
    "enable_moe_block": True, "layer_types": ["full_attention"], "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0, "max_position_embeddings": 64, "tie_word_embeddings": True,
}
SKIPPED = ["model.layers.0.router.proj", "router.proj", "lm_head"]


class Folder:
    """What write_folder asks of a model."""

    def __init__(self, config, others):
        self.config, self.linear, self.others = config, {}, others


def main(out):
    torch.manual_seed(7)
    # Only the kernels that multiply need a GPU, not the op that quantizes.
    FineGrainedFP8HfQuantizer.validate_environment = lambda self, *args, **kwargs: None
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        config = AutoConfig.for_model("gemma4_text", **CONFIG)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder / "float")
        quantization = FineGrainedFP8Config(weight_block_size=BLOCK, modules_to_not_convert=SKIPPED)
        model = AutoModelForCausalLM.from_pretrained(
            folder / "float", quantization_config=quantization, dtype=torch.bfloat16)
        model.save_pretrained(folder / "quantized")
        stored = load_file(folder / "quantized" / "model.safetensors")
        saved = json.loads((folder / "quantized" / "config.json").read_text())
    dequantize = Fp8Dequantize(None)._dequantize_one
    meant, parts, fused = {}, {}, {}
    for name, tensor in stored.items():
        if tensor.dtype != torch.float8_e4m3fn:
            continue
        base = name.removesuffix(".weight")
        scale = next(n for n in (f"{base}.weight_scale_inv", f"{base}.scale", f"{base}_scale_inv")
                     if n in stored)
        parts |= {name: tensor, scale: stored[scale]}
        weight = dequantize(tensor, stored[scale].float(), torch.float32)
        if tensor.dim() == 2:
            meant[base] = weight
            continue
        fused[base] = weight
        stem, projection = base.rsplit(".", 1)
        for expert in range(EXPERTS):
            if projection == "down_proj":
                meant[f"{stem}.{expert}.down_proj"] = weight[expert]
            else:
                gate, up = weight[expert].chunk(2)
                meant |= {f"{stem}.{expert}.gate_proj": gate, f"{stem}.{expert}.up_proj": up}
    others = {name: tensor for name, tensor in stored.items() if name not in parts}
    saved_quantization = saved.pop("quantization_config")
    write_folder(pathlib.Path(out) / "fp8_stacked", Folder(saved, others), parts, meant,
                 saved_quantization, fused)


if __name__ == "__main__":
    main(*sys.argv[1:])

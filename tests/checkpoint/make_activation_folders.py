# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/w8a8: folders for activations of 8 bits, in compressed-tensors' layout, and what
transformers computes with their weights where the input of each quantized matrix is rounded as vLLM
rounds it (csrc/quantization/w8a8/int8): with a scale for each token, x * (127 / max|x|), or with that
of the file, x * (1 / scale), to the nearest integer. What lies beyond becomes -127 or 127, as in
Vitrine; vLLM has a -128, too. "token" has gates and ups in 4 bits, and a head; "file" and "experts", by token, have experts.

    python3 tests/checkpoint/make_activation_folders.py FOLDER

Needs transformers 5 (5.23 made them), whose experts are one module. expected.json has "logits" with
rounded inputs and "float_logits" without. A few channels of the norms are large, as outliers are.
"""

import base64
import json
import pathlib
import re
import sys
import tempfile

import torch
from quantized_folders import TOKENS, TinyModel
from safetensors.torch import save_file
from torch.nn import functional
from transformers import AutoModelForCausalLM

OUTLIERS, FACTOR = (5, 131), 8.0


def rounded(x, scale):
    """The numbers that int8 rows of x stand for; scale None: each row's own."""
    if scale is None:
        largest = x.abs().amax(-1, keepdim=True)
        return torch.round(x * (127 / largest)).clamp(-127, 127) * (largest / 127)
    return torch.round(x * (1 / scale)).clamp(-127, 127) * scale


def quantize(weight, bits):
    """What a folder stores, and what it means."""
    half = 2**(bits - 1)
    scale = weight.float().abs().amax(1, keepdim=True) / (half - 1)
    numbers = torch.round(weight.float() / scale).clamp(-half, half - 1)
    meant = numbers * scale
    if bits == 8:
        return {"weight": numbers.to(torch.int8), "weight_scale": scale}, meant
    rows, cols = numbers.shape
    eights = (numbers.to(torch.int64) + half).reshape(rows, cols // 8, 8)
    words = (eights << torch.arange(0, 32, 4)).sum(-1)
    words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    return {"weight_packed": words, "weight_scale": scale,
            "weight_shape": torch.tensor([rows, cols])}, meant


class Rounding:
    """Rounds the inputs of a model's matrices, and notes the largest of each module's."""

    def __init__(self, model, names, scales):
        self.scales, self.is_on, self.largest = scales, False, {}
        for name, module in model.named_modules():
            if name in names:
                module.register_forward_pre_hook(
                    lambda _, inputs, name=name: (self.input_of(name, inputs[0]),))
            if name.endswith(".experts"):
                module.forward = lambda x, ids, weights, name=name, module=module: self.experts(
                    name, module, x, ids, weights)

    def input_of(self, name, x):
        self.largest[name] = max(self.largest.get(name, 0.0), x.abs().max().item())
        return rounded(x, self.scales and self.scales[name]) if self.is_on else x

    def experts(self, name, module, x, ids, weights):
        out = torch.zeros_like(x)
        for expert in range(module.gate_up_proj.shape[0]):
            token, place = torch.where(ids == expert)
            at = f"{name}.{expert}."
            both = functional.linear(self.input_of(at + "gate_proj", x[token]),
                                     module.gate_up_proj[expert])
            gate, up = both.chunk(2, dim=-1)
            hidden = self.input_of(at + "down_proj", functional.silu(gate) * up)
            result = functional.linear(hidden, module.down_proj[expert])
            out.index_add_(0, token, result * weights[token, place, None])
        return out


def logits_of(tiny, tensors, scales_of):
    """Float logits, and those with rounded inputs; `scales_of` makes the scales of the largest."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "config.json").write_text(json.dumps(tiny.config | {"torch_dtype": "float32"}))
        save_file({name: tensor.float().contiguous() for name, tensor in tensors.items()},
                  folder / "model.safetensors", metadata={"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                     experts_implementation="eager")
    rounding = Rounding(model, tiny.linear, None)
    with torch.no_grad():
        plain = model(torch.tensor([TOKENS])).logits[0]
        rounding.scales = scales_of(rounding.largest)
        rounding.is_on = True
        return plain, model(torch.tensor([TOKENS])).logits[0], rounding.scales


def make(folder, tiny, is_static, narrow=None):
    """`narrow`: a pattern of modules in 4 bits."""
    for name, tensor in tiny.others.items():
        if name.endswith("layernorm.weight"):
            tensor[list(OUTLIERS)] *= FACTOR
    stored, meant = {}, {}
    for name, weight in tiny.linear.items():
        parts, meant[f"{name}.weight"] = quantize(weight, 4 if narrow and re.match(narrow, name)
                                                  else 8)
        stored |= {f"{name}.{part}": tensor for part, tensor in parts.items()}

    def scales_of(largest):
        if not is_static:
            return None
        # Less than the largest needs, so that some numbers are cut off; a gate's and its up's are
        # one number in the sum, the larger.
        scales = {name: torch.tensor(0.8 * value / 127) for name, value in largest.items()}
        for name in list(scales):
            if name.endswith("gate_proj"):
                scales[name.replace("gate_proj", "up_proj")] = 0.9 * scales[name]
        return scales

    plain, quantized, scales = logits_of(tiny, meant | tiny.others, scales_of)
    for name, scale in (scales or {}).items():
        stored[f"{name}.input_scale"] = scale.reshape(1)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in (stored | tiny.others).items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    activations = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": not is_static,
                   "strategy": "tensor" if is_static else "token"}
    groups = {"group_0": {
        "targets": ["Linear"], "input_activations": activations, "format": "int-quantized",
        "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}}}
    if narrow:
        groups["group_1"] = {
            "targets": ["re:" + narrow], "input_activations": activations, "format": "pack-quantized",
            "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "channel"}}
    tied = ["lm_head"] if tiny.config["tie_word_embeddings"] else []
    config = tiny.config | {"quantization_config": {
        "quant_method": "compressed-tensors", "quantization_status": "compressed",
        "format": "mixed-precision" if narrow else "int-quantized",
        "ignore": [*tied, "re:.*mlp.gate$"], "config_groups": groups}}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    text = lambda logits: base64.b64encode(logits.numpy().tobytes()).decode()
    (folder / "expected.json").write_text(json.dumps(
        {"tokens": TOKENS, "logits": text(quantized), "float_logits": text(plain)}, indent=1) + "\n")
    print(folder.name, (plain - quantized).abs().max().item())


def main(out):
    make(f"{out}/token", TinyModel("qwen3", 41, hidden_size=136, intermediate_size=40,
                                   tie_word_embeddings=False), is_static=False,
         narrow=r".*(gate|up)_proj$")
    make(f"{out}/file", TinyModel("qwen3_moe", 44, hidden_size=136, moe_intermediate_size=40),
         is_static=True)
    make(f"{out}/experts", TinyModel("qwen3_moe", 45, hidden_size=136, moe_intermediate_size=40),
         is_static=False)


if __name__ == "__main__":
    main(sys.argv[1])

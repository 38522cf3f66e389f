# SPDX-License-Identifier: Apache-2.0
"""A folder of `vitrine quantize` as a float one, by what compressed-tensors makes of its modules.

transformers keeps the experts of a layer as one tensor, which it makes of one scheme's at most (5.17
of none): here compressed-tensors decompresses the modules one by one before transformers sees them.
"""

import json

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.utils.match import match_name
from safetensors.torch import load_file, save_file


def scheme_of(settings, module):
    """The group that names the module, or else the one of all linear modules."""
    groups = list(settings.config_groups.values())
    named = (group for group in groups if any(match_name(module, name) for name in group.targets))
    return next(named, None) or next(group for group in groups if "Linear" in group.targets)


def unpack_folder(folder, out):
    """Writes the float folder `out`, and returns what the folder asks of activations, or None."""
    config = json.loads((folder / "config.json").read_text())
    settings = config.pop("quantization_config", None)
    if settings is not None:
        settings = QuantizationConfig.model_validate(settings)
    modules, result, asks = {}, {}, None
    for name, tensor in load_file(folder / "model.safetensors").items():
        module, part = name.rsplit(".", 1)
        modules.setdefault(module, {})[part] = tensor
    for module, parts in modules.items():
        if "weight_scale" not in parts:
            result |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
            continue
        group = scheme_of(settings, module)
        asks = group.input_activations
        compressor = BaseCompressor.get_value_from_registry(group.format or settings.format)
        if "bias" in parts:
            result[module + ".bias"] = parts["bias"]
        parts = {part: tensor for part, tensor in parts.items() if part.startswith("weight")}
        if parts["weight_scale"].dtype in (torch.bfloat16, torch.float16):
            parts["weight_scale"] = parts["weight_scale"].float()  # products in float32, unrounded
        result[module + ".weight"] = compressor.decompress(parts, group)["weight"].float()
    save_file(result, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config))
    return asks

# SPDX-License-Identifier: Apache-2.0
"""The model that heads are trained for, in torch: FractalMoE's folder, or a GGUF file."""

import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


def unpack(words, scales, shape):
    """compressed-tensors' `pack-quantized`: [rows, columns] of integers, times their groups' scales."""
    rows, columns = shape
    group = columns // scales.shape[1]
    bits = 32 * words.shape[1] // columns
    shifts = torch.arange(0, 32, bits)
    values = (words[:, :, None] >> shifts) & (2 ** bits - 1)
    values = values.flatten(1)[:, :columns].float() - 2 ** (bits - 1)
    return (values.unflatten(1, (-1, group)) * scales.float()[:, :, None]).flatten(1)


def read_packed(folder):
    """Tensors of a folder in float32, whatever they are packed in."""
    stored, tensors = load_file(folder / "model.safetensors"), {}
    for name, tensor in stored.items():
        module, _, kind = name.rpartition(".")
        if kind == "weight_packed":
            shape = stored[module + ".weight_shape"].tolist()
            tensors[module + ".weight"] = unpack(tensor, stored[module + ".weight_scale"], shape)
        elif kind not in ("weight_scale", "weight_shape"):
            tensors[name] = tensor.float()
    return tensors


def join_experts(tensors):
    """transformers keeps a layer's experts in one tensor, gates above ups."""
    joined, experts = {}, {}
    for name, tensor in tensors.items():
        head, found, tail = name.partition(".mlp.experts.")
        if not found:
            joined[name] = tensor
            continue
        index, part, _ = tail.split(".")
        experts.setdefault(head + ".mlp.experts", {})[int(index), part] = tensor
    for name, parts in experts.items():
        count = 1 + max(index for index, _ in parts)
        joined[name + ".gate_up_proj"] = torch.stack(
            [torch.cat([parts[i, "gate_proj"], parts[i, "up_proj"]]) for i in range(count)])
        joined[name + ".down_proj"] = torch.stack([parts[i, "down_proj"] for i in range(count)])
    return joined


def load_model(model):
    """In float32: weights are what quantized ones stand for, activations are not quantized."""
    path = pathlib.Path(model)
    is_gguf = path.suffix == ".gguf"
    fields = (load_gguf_checkpoint(path)["config"] if is_gguf
              else json.loads((path / "config.json").read_text()))
    fields.pop("quantization_config", None)
    config = transformers.AutoConfig.for_model(**fields)
    empty = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tensors = (load_gguf_checkpoint(path, return_tensors=True, model_to_load=empty,
                                    torch_dtype=torch.float32)["tensors"] if is_gguf
               else join_experts(read_packed(path)))
    missing, unknown = empty.load_state_dict(tensors, strict=False)
    if unknown or set(missing) - set(empty.all_tied_weights_keys):
        raise SystemExit(f"{path}: lacks {missing}, and has {unknown}; expected the tensors of "
                         f"{type(empty).__name__}")
    empty.tie_weights()
    return empty


class Target:
    """What heads are shown of a model."""

    def __init__(self, path):
        self.read(load_model(path))

    def read(self, model):
        self.model = model
        self.config = self.model.config
        self.embedding = self.model.get_input_embeddings().weight.detach()
        self.norm = self.model.model.norm
        self.head = self.model.get_output_embeddings().weight.detach()

    @torch.no_grad()
    def features(self, ids, layers):
        """[texts, tokens, layers * hidden] of [texts, tokens]: the residual stream as it enters
        these layers; the number of layers: what leaves the last one."""
        kept = {}

        def keep(layer):
            def hook(_, inputs):
                kept[layer] = inputs[0]
            return hook
        stages = [*self.model.model.layers, self.norm]
        hooks = [stages[layer].register_forward_pre_hook(keep(layer)) for layer in layers]
        self.model.model(input_ids=ids, use_cache=False)
        for hook in hooks:
            hook.remove()
        return torch.cat([kept[layer] for layer in layers], -1)

    @torch.no_grad()
    def logits(self, last, rows):
        """[..., rows] of what left the last layer."""
        return torch.nn.functional.linear(self.norm(last), self.head[rows])

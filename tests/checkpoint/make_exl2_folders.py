# SPDX-License-Identifier: Apache-2.0
"""Makes the folders of tests/data/exl2 with exllamav2's own quantizer and packing
(exllamav2/conversion/adaptivegptq.py of 0.3.2), of which a copy of the sources is needed alone:

    make_exl2_folders.py EXLLAMAV2_SOURCES OUT

exllamav2 runs on CUDA alone. What its Python code calls in its extension is done here in numpy, as
the kernels do it (cuda/quantize.cu, cuda/pack_tensor.cu), and so is the decoder (cuda/q_matrix.cu),
whose weights are compared with what the quantizer says that it packed.
"""

import importlib.util
import json
import pathlib
import sys
import types

import numpy as np
import torch
from quantized_folders import TinyModel, write_folder
from safetensors.torch import load_file, save_file


def quantize_range_inplace(weights, scale, qweight, qzero, maxq, first, end):
    """quantize_rtn_kernel, row after row."""
    number = ((weights[first:end] / scale).round() + qzero).clamp(0, maxq)
    qweight[first:end] = number.short()
    weights[first:end] = ((number.half() - qzero) * scale.half()).float()


def quantize_err(weights, out, scale, qzero, maxq, norm, least, most, grid):
    for step in range(grid + 1):
        share = step / grid
        tried = scale * (most * share + least * (1 - share))
        number = ((weights / tried).round() + qzero).clamp(0, maxq)
        out[step, 0] = ((number - qzero) * tried - weights).abs().pow(norm).sum()


def pack_rows_4(numbers, out):
    fields = (numbers.numpy().astype(np.uint32) - 1).reshape(numbers.shape[0], -1, 8)
    packed = (fields << np.arange(0, 32, 4, dtype=np.uint32)).sum(axis=2, dtype=np.uint32)
    out[:] = torch.from_numpy(packed.view(np.int32))


def pack_columns(numbers, out, bits):
    """A column's numbers as one stream of bits, low bits first."""
    numbers = numbers.numpy()
    stream = np.zeros((out.shape[0] * 32, numbers.shape[1]), np.uint32)
    for bit in range(bits):
        stream[bit:bit + numbers.shape[0] * bits:bits] = numbers >> bit & 1
    words = stream.reshape(out.shape[0], 32, -1) << np.arange(32, dtype=np.uint32)[:, None]
    out[:] = torch.from_numpy(words.sum(axis=1, dtype=np.uint32).view(np.int32))


def load_quantizer(sources):
    """exllamav2's class, without the package, which wants its extension."""
    extension = types.SimpleNamespace(quantize_range_inplace=quantize_range_inplace,
                                      quantize_err=quantize_err, pack_rows_4=pack_rows_4,
                                      pack_columns=pack_columns)
    for name, parts in (("exllamav2", {}), ("exllamav2.util", {"list_live_tensors": None}),
                        ("exllamav2.ext", {"exllamav2_ext": extension, "none_tensor": None})):
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(parts)
    path = pathlib.Path(sources) / "exllamav2/conversion/adaptivegptq.py"
    spec = importlib.util.spec_from_file_location("adaptivegptq", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    move = torch.Tensor.to
    torch.Tensor.to = lambda self, *args, **more: move(
        self, *("cpu" if str(arg).startswith("cuda") else arg for arg in args), **more)
    torch.cuda.synchronize = lambda: None
    return module.AdaptiveGPTQ


def decode(parts):
    """What reconstruct_kernel makes of a module: float32 [rows, columns], scales rounded to half as
    dq_scale and make_q_matrix round them, products in float32."""
    words = parts["q_weight"].numpy().view(np.uint32)
    bits_of, line_of = parts["q_groups"].numpy().view(np.uint16).reshape(-1, 2).T.astype(int)
    most = parts["q_scale_max"].numpy() * np.float16(1 / 256)
    columns = len(parts["q_invperm"])
    sorted_rows = np.zeros((columns, words.shape[1]), np.float32)
    first = 0
    for group, (bits, line) in enumerate(zip(bits_of, line_of)):
        end = line_of[group + 1] if group + 1 < len(line_of) else words.shape[0]
        count = min((end - line) * 32 // bits, columns - first)
        nibbles = parts["q_scale"][group].numpy().view(np.uint32)
        fields = (nibbles[:, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).reshape(-1)
        scale = ((fields + 1) ** 2).astype(np.float16) * most[group]
        for k in range(count):
            number = np.zeros(words.shape[1], np.int64)
            for bit in range(k * bits, (k + 1) * bits):
                number |= (words[line + bit // 32] >> np.uint32(bit % 32) & 1).astype(
                    np.int64) << (bit - k * bits)
            sorted_rows[first + k] = (number - 2 ** (bits - 1)) * scale.astype(np.float32)
        first += count
    assert first == columns
    return torch.from_numpy(np.ascontiguousarray(sorted_rows[parts["q_invperm"].numpy()].T))


def quantize(quantizer_class, weight, recipe, importance):
    """Parts and meaning of a module whose columns go by importance: those of most bits first."""
    rows, columns = weight.shape
    linear = torch.nn.Linear(columns, rows, bias=False)
    linear.weight.data = weight.float()
    sizes, bits, shares = recipe
    quantizer = quantizer_class(linear)
    quantizer.quant_device = "cpu"
    quantizer.hessian, quantizer.num_batches = torch.diag(importance), 1
    quantizer.prepare(no_h_inv=True)
    quantizer.configure(dict(zip(bits, sizes)), bits, shares)
    with torch.inference_mode():
        quantizer.quantize_rtn_inplace(keep_qweight=True, apply=True)
        packed = quantizer.pack("m", types.SimpleNamespace(scale_bits=4))
    parts = {name.removeprefix("m."): tensor.clone() for name, tensor in packed.items()}
    meant = decode(parts)
    if not torch.equal(meant[:rows].half(), linear.weight.data.half()):
        raise SystemExit("the packed numbers are not those that were meant")
    if not torch.equal(meant[rows:], torch.zeros_like(meant[rows:])):
        raise SystemExit("what fills up the rows is not zero")
    return parts, meant[:rows].contiguous()


def make(out, name, quantizer_class, model, recipes, files):
    """`recipes`: by the end of a module's name, group sizes, bits and shares of the columns."""
    stored, meant, importances = {}, {}, {}
    for module, weight in model.linear.items():
        recipe = next(recipe for end, recipe in recipes.items() if module.endswith(end))
        # Matrices of one input have one order; output and down projections have their own.
        shared = module.rsplit(".", 1)[0] if not module.endswith(("o_proj", "down_proj", "w2")) \
            else module
        importance = importances.setdefault(
            shared, torch.rand(weight.shape[1], generator=model.generator))
        if recipe[0] == "in order":
            importance = torch.arange(weight.shape[1], 0, -1).float()
            recipe = recipe[1:]
        parts, meant[module] = quantize(quantizer_class, weight, recipe, importance)
        stored |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    config = {"quant_method": "exl2", "version": "0.3.2", "bits": 4.5, "head_bits": 3,
              "calibration": {"rows": 115, "length": 2048, "dataset": "(default)"}}
    folder = pathlib.Path(out) / name
    write_folder(folder, model, stored, meant, config)
    expected = json.loads((folder / "expected.json").read_text())
    expected["rows"] = {module: weight.shape[0] for module, weight in meant.items()}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    # exllamav2 names its files so, and leaves the float model's index beside them.
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}) + "\n")
    names = sorted(tensors)
    for i in range(files):
        path = "output.safetensors" if files == 1 else f"output-{i + 1:05}-of-{files:05}.safetensors"
        save_file({key: tensors[key] for key in names[i::files]}, folder / path,
                  metadata={"format": "pt"})


def main():
    quantizer_class, out = load_quantizer(sys.argv[1]), sys.argv[2]
    make(out, "exl2_mixed", quantizer_class,
         TinyModel("llama", 61, hidden_size=96, vocab_size=40, intermediate_size=160,
                   tie_word_embeddings=False), {
             "q_proj": ([32, 32], [3, 2], [0.05, 0.95]), "k_proj": ([128], [4], [1]),
             "v_proj": ([64, 64], [5, 4], [0.1, 0.9]), "o_proj": ([32], [6], [1]),
             "gate_proj": ([32, 32], [8, 6], [0.1, 0.9]), "up_proj": ([128], [4], [1]),
             "down_proj": ([32, 64, 64], [6, 3, 2], [0.05, 0.2, 0.75]),
             "lm_head": ([32, 32], [4, 3], [0.15, 0.85])}, 1)
    make(out, "exl2_moe", quantizer_class,
         TinyModel("mixtral", 62, intermediate_size=80), {
             "q_proj": ("in order", [32, 32], [4, 2], [0.3, 0.7]), "k_proj": ([32], [5], [1]),
             "v_proj": ([32], [8], [1]), "o_proj": ([16], [2], [1]),
             "w1": ([32, 32], [4, 3], [0.1, 0.9]), "w3": ([64], [4], [1]),
             "w2": ([32, 32], [8, 2], [0.05, 0.95])}, 2)


if __name__ == "__main__":
    main()

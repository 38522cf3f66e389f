# SPDX-License-Identifier: Apache-2.0
"""Every scheme and method of `vitrine quantize` beside the source, and in transformers.

    compare_methods.py MODEL --text FILE… [--ways int4:rtn,int4:awq,…] [--calibration-tokens 8192]
                       [--windows 60] [--transformers-windows 4] [--planted] [--python PYTHON]
                       [--vitrine build/vitrine] [--work FOLDER]

MODEL is a float checkpoint folder; its texts are cut as compare_compression.py does it. A way is
SCHEME[/GROUP]:METHOD. Printed are, for each, the bytes of the tensors and, by
build/bench/compression_windows, the mean KL to the source, equal choices and other experts.

PYTHON (transformers and compressed-tensors) then predicts the first --transformers-windows windows
in float32 with the weights that compressed-tensors reads from each folder: its KL to its own
prediction from the source, with activations rounded token by token where the folder asks for it,
stands beside Vitrine's on the same windows.
For awq the same folder stands there with the source's routers, too, as mappings that leave these
out make it.

With --planted the source is changed first: 1 % of each norm's channels are 30 times as large, and
all that reads them divides by 30, so that activations of 8 bits have outliers to lose.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys

import compare_compression as base

WAYS = ("int8:rtn,fp8:rtn,int8-w8a8:rtn,int8-w8a8:smoothquant,int8-w8a8-static:rtn,"
        "int8-w8a8-static:smoothquant,fp8-dynamic:rtn,fp8-static:rtn,int4/32:rtn,int4/32:awq,"
        "int4/32:gptq,int4/128:rtn,int4/128:awq,int4/128:gptq,int3/128:rtn,int3/128:awq,"
        "int3/128:gptq,nvfp4:rtn,mxfp4:rtn,mixed:3.5/128:gptq,"
        "mixed:3.5:experts/128:gptq,mixed:4.5/128:gptq")

READER = f"import sys\nsys.path.insert(0, {str(pathlib.Path(__file__).resolve().parent)!r})" + r"""
import json, pathlib, tempfile
import torch
from transformers import AutoModelForCausalLM
from unpacked_folder import unpack_folder
torch.set_num_threads(2)
plain_linear = torch.nn.functional.linear


def rounding(asks):
    # A scale for each token, for all that is quantized: not the head, and not routers.
    def linear(input, weight, bias=None):
        if weight.shape[0] not in (vocabulary, experts):
            scale = input.abs().amax(-1, keepdim=True).clamp(min=1e-12)
            if asks.type == "int":
                scale = scale / 127.5
                input = (input / scale).round().clamp(-128, 127) * scale
            else:
                scale = scale / 448
                input = (input / scale).to(torch.float8_e4m3fn).float() * scale
        return plain_linear(input, weight, bias)
    return linear


windows = json.load(open(sys.argv[1]))["texts"][: int(sys.argv[2])]
rows = {}
with torch.no_grad(), tempfile.TemporaryDirectory() as work:
    for folder in map(pathlib.Path, sys.argv[3:]):
        asks = unpack_folder(folder, pathlib.Path(work))
        if asks is not None and not asks.dynamic:
            continue  # a scale for each module: not to be had of fused experts
        model = AutoModelForCausalLM.from_pretrained(work, dtype=torch.float32,
                                                     experts_implementation="eager")
        vocabulary, experts = model.config.vocab_size, model.config.num_experts
        torch.nn.functional.linear = rounding(asks) if asks is not None else plain_linear
        rows[str(folder)] = torch.cat([model(torch.tensor([ids])).logits[0].log_softmax(-1)
                                       for ids in windows])
        torch.nn.functional.linear = plain_linear
source = rows[sys.argv[3]]
print(json.dumps({folder: (source.exp() * (source - row)).sum(-1).mean().item()
                  for folder, row in rows.items()}))
"""

PLANTER = r"""
import sys, random
import torch
from safetensors.torch import load_file, save_file
source, out = sys.argv[1:]
tensors = load_file(source + "/model.safetensors")
chooser = random.Random(1)
READERS = {"input_layernorm": ("q_proj", "k_proj", "v_proj"),
           "post_attention_layernorm": ("gate_proj", "up_proj", "mlp.gate")}
for name in [name for name in tensors if name.endswith("layernorm.weight")]:
    layer, norm = name.rsplit(".", 2)[0], name.rsplit(".", 2)[1]
    width = tensors[name].numel()
    channels = chooser.sample(range(width), max(1, width // 100))
    tensors[name][channels] *= 30
    for other in tensors:
        if other.startswith(layer + ".") and any(other.endswith(part + ".weight")
                                                 for part in READERS[norm]):
            tensors[other][:, channels] /= 30
save_file(tensors, out + "/model.safetensors", metadata={"format": "pt"})
"""

UNROUTED = r"""
import sys
from safetensors.torch import load_file, save_file
source, folder = sys.argv[1:]
tensors, plain = load_file(folder + "/model.safetensors"), load_file(source + "/model.safetensors")
for name in tensors:
    if name.endswith("mlp.gate.weight"):
        tensors[name] = plain[name]
save_file(tensors, folder + "/model.safetensors", metadata={"format": "pt"})
"""


def quantize(arguments, model, way, tails):
    scheme, method = way.rsplit(":", 1)
    scheme, _, group = scheme.partition("/")
    folder = arguments.work / way.replace(":", "-").replace("/", "-")
    shutil.rmtree(folder, ignore_errors=True)
    texts = method != "rtn" or "static" in scheme or scheme.startswith("mixed")
    out, seconds = base.run(
        [arguments.vitrine, "quantize", model, folder, "--scheme", scheme, "--method", method,
         "--keep-head", "--quiet", *(["--group-size", group] if group else []),
         *(["--calibration", tails] if texts else [])])
    manifest = json.loads((folder / "vitrine_manifest.json").read_text())
    return folder, seconds, manifest["tensor_bytes"]["result"]


def run_python(arguments, script, *words):
    path = arguments.work / "script.py"
    path.write_text(script)
    return base.run([arguments.python, path, *words])[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--ways", default=WAYS)
    parser.add_argument("--calibration-tokens", type=int, default=8192)
    parser.add_argument("--windows", type=int, default=60)
    parser.add_argument("--transformers-windows", type=int, default=4)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--vitrine", type=pathlib.Path, default=base.ROOT / "build" / "vitrine")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("methods"))
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    model = arguments.model
    if arguments.planted:
        model = arguments.work / "planted"
        shutil.copytree(arguments.model, model, dirs_exist_ok=True)
        run_python(arguments, PLANTER, arguments.model, model)
    evaluated, calibrated = base.divide(
        [base.encode(arguments.vitrine, model, path) for path in arguments.text],
        arguments.windows, arguments.calibration_tokens)
    heads = base.write_windows(arguments.work / "evaluated.vcal", evaluated)
    tails = base.write_windows(arguments.work / "calibrated.vcal", calibrated)
    folders, facts = {}, {}
    for way in arguments.ways.split(","):
        folders[way], *facts[way] = quantize(arguments, model, way, tails)
        if way.endswith(":awq"):
            name = way + ", source's routers"
            folders[name] = pathlib.Path(str(folders[way]) + "-routers")
            shutil.copytree(folders[way], folders[name], dirs_exist_ok=True)
            run_python(arguments, UNROUTED, model, folders[name])
            facts[name] = facts[way]
    bench = arguments.vitrine.parent / "bench" / "compression_windows"
    found = json.loads(base.run([bench, heads, arguments.model, *folders.values()])[0])
    theirs = {}
    if arguments.transformers_windows > 0:
        theirs = json.loads(run_python(
            arguments, READER, heads, arguments.transformers_windows,
            arguments.model, *folders.values()))
    print(f"| way | MB | KL | equal choices | other experts | of {arguments.transformers_windows} "
          "windows | in transformers | s |")
    print("|---|---|---|---|---|---|---|---|")
    for way, folder in folders.items():
        rows = found[str(folder)]
        first = rows[:arguments.transformers_windows]
        peer = f"{base.mean(first, 'kl'):.5f} | " if first else " | "
        peer += f"{theirs[str(folder)]:.5f}" if str(folder) in theirs else ""
        print(f"| {way} | {facts[way][1] / 1e6:.1f} | {base.mean(rows, 'kl'):.5f} | "
              f"{100 * base.mean(rows, 'top1'):.2f} % | {100 * base.mean(rows, 'flips'):.2f} % | "
              f"{peer} | {facts[way][0]:.0f} |", flush=True)


if __name__ == "__main__":
    main()

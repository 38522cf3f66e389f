# SPDX-License-Identifier: Apache-2.0
"""Every kind of folder that `vitrine quantize` writes, in transformers and in Vitrine.

    compare_transformers.py MODEL… [--ways int4:rtn,…] [--vitrine build/vitrine] [--threads 2]

MODEL is a float folder with an oracle.json, whose `tokens` are predicted (tests/data/oracles has
some). Each is quantized in each way, SCHEME:METHOD, in groups of 32, by a calibration of random ids
where the way asks for one. Printed is for each folder the mean KL, in nats, from what transformers
predicts with it in float32:

    loaded       transformers' own load of the folder to Vitrine with float activations. "no" where it
                 has no numbers or no place for some weights; a line beneath the table says which first
    unpacked     the same, of the folder that compressed-tensors unpacks before transformers loads it
    as it runs   of the unpacked folder to Vitrine, whose activations beside integers are int8
    source       of the source to the folder: what the numbers cost

Float activations in Vitrine are those of build/bench/float_copy, which writes the weights that it
reads as float32. transformers' activations stay floats. Needs the packages of tests/requirements.txt.
"""

import argparse
import json
import pathlib
import random
import subprocess
import tempfile

import numpy as np
import torch
import transformers
from compare_compression import ROOT, fail, run, write_windows
from compressed_tensors.quantization import disable_quantization
from transformers import AutoModelForCausalLM
from unpacked_folder import unpack_folder

WAYS = ("int8:rtn,int8-asymmetric:rtn,int4:rtn,int4-asymmetric:rtn,int4:gptq,int4:awq,int3:rtn,"
        "int3-asymmetric:rtn,mixed:4:rtn,mixed:4:experts:rtn,fp8:rtn,nvfp4:rtn,mxfp4:rtn,"
        "int8-w8a8:rtn,int8-w8a8:smoothquant,int8-w8a8-static:rtn,fp8-dynamic:rtn,fp8-static:rtn")


def divergence(reference, other):
    """The mean KL of rows of log-probabilities."""
    return (reference.exp() * (reference - other)).sum(-1).mean().item()


def in_transformers(folder, ids):
    """Log-probabilities; or the tensors that transformers finds no place or another shape for."""
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", ignore_mismatched_sizes=True,
            output_loading_info=True)
    except (KeyError, RuntimeError) as error:
        return None, [str(error)]
    lost = sorted(key if isinstance(key, str) else key[0] for kind in (
        "missing_keys", "unexpected_keys", "mismatched_keys") for key in found[kind])
    if lost:
        return None, lost
    model.apply(disable_quantization)
    with torch.no_grad():
        try:
            model(torch.tensor([ids]))  # unpacks modules, to bfloat16 where they are floats of 4 bits
        except RuntimeError as error:
            if "same dtype" not in str(error):
                raise
        torch.nn.Module.float(model)  # transformers' own refuses quantized models
        return model(torch.tensor([ids])).logits[0].double().log_softmax(-1), lost


def in_vitrine(arguments, folder, ids, work):
    program = arguments.vitrine.parent / "tests" / "row_logits"
    done = subprocess.run([program, folder, str(arguments.threads), work / "rows", "f32"], text=True,
                          input=" ".join(map(str, ids)), capture_output=True, check=False)
    if done.returncode != 0:
        fail(done.stderr)
    logits = torch.from_numpy(np.fromfile(work / "rows", np.float32).reshape(len(ids), -1))
    return logits.double().log_softmax(-1)


def quantize(arguments, model, way, calibration, folder):
    scheme, method = way.rsplit(":", 1)
    texts = method != "rtn" or "static" in scheme or scheme.startswith("mixed")
    run([arguments.vitrine, "quantize", model, folder, "--scheme", scheme, "--method", method,
         "--quiet", *(["--calibration", calibration] if texts else [])])


def compare(arguments, model, ids, way, work):
    """The four numbers of a folder, and what transformers lost of it."""
    folder, unpacked, copy = work / "folder", work / "unpacked", work / "copy"
    for path in (unpacked, copy):
        path.mkdir()
    quantize(arguments, model, way, arguments.calibration, folder)
    run([arguments.vitrine.parent / "bench" / "float_copy", folder, copy])
    unpack_folder(folder, unpacked)
    ours = in_vitrine(arguments, copy, ids, work)
    loaded, lost = in_transformers(folder, ids)
    by_package, unexpected = in_transformers(unpacked, ids)
    if unexpected:
        fail(f"{model}, {way}, unpacked: transformers lost {unexpected[0]}")
    return {"loaded": None if lost else divergence(loaded, ours),
            "unpacked": divergence(by_package, ours),
            "as it runs": divergence(by_package, in_vitrine(arguments, folder, ids, work)),
            "source": divergence(in_transformers(model, ids)[0], by_package)}, lost


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=pathlib.Path, nargs="+")
    parser.add_argument("--ways", default=WAYS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vitrine", type=pathlib.Path, default=ROOT / "build" / "vitrine")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    lost, columns = {}, ("loaded", "unpacked", "as it runs", "source")
    print("| model | way | " + " | ".join(columns) + " |\n|---|---|---|---|---|---|", flush=True)
    for model in arguments.models:
        ids = json.loads((model / "oracle.json").read_text())["tokens"]
        chooser = random.Random(1)
        size = json.loads((model / "config.json").read_text())["vocab_size"]
        for way in arguments.ways.split(","):
            with tempfile.TemporaryDirectory() as work:
                work = pathlib.Path(work)
                arguments.calibration = write_windows(work / "calibration.vcal", [
                    [chooser.randrange(size) for _ in range(128)] for _ in range(8)])
                numbers, missing = compare(arguments, model, ids, way, work)
            print(f"| {model.name} | {way} | " + " | ".join(
                "no" if numbers[name] is None else f"{numbers[name]:.2g}" for name in columns) + " |",
                  flush=True)
            if missing:
                lost[f"{model.name}, {way}"] = missing[0]
    for name, what in lost.items():
        print(f"{name}: transformers' own load fails by {what}")


if __name__ == "__main__":
    main()

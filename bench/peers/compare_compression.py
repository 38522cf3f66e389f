# SPDX-License-Identifier: Apache-2.0
"""Vitrine's GPTQ, AWQ and rounding beside llm-compressor's, on the same token ids, bits and groups.

    compare_compression.py MODEL --text FILE… [--settings W4g32,W4g128,W3g128,W3g128a,AWQ4g128,
                           AWQ4g128a,AWQ3g128a,W8A8,FP8]
                           [--calibration-tokens 8192] [--windows 60] [--python PYTHON]
                           [--vitrine build/vitrine] [--work FOLDER] [--json OUT]

MODEL is a float checkpoint folder, PYTHON one with llm-compressor (0.14.0.1 was used). Each text is
cut in two: windows of 512 tokens from its head are what models are compared on, windows of 256 from
its tail are the calibration, so that no token is in both. llm-compressor calibrates each expert on
its own tokens and on all of them; both folders, ours and the rounded one are held against the
source by build/bench/compression_windows. The output head stays as it is everywhere. Printed are
the mean KL, equal choices and other experts of each, and for the two calibrated ways the ratio of
our KL to that of llm-compressor's better one, with a paired bootstrap over windows (95 %). W8A8 and FP8
are rounded on both sides, with activations as Vitrine has them.
"""

import argparse
import dataclasses
import json
import pathlib
import random
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Setting:
    """What both sides are asked for."""
    scheme: str
    group: int = 0
    method: str = "gptq"
    preset: str | None = None  # llm-compressor's name of a scheme without groups

    def of_peer(self):
        bits = None if self.preset else int(self.scheme.removeprefix("int").partition("-")[0])
        return {"bits": bits, "group": self.group, "symmetric": "asymmetric" not in self.scheme,
                "method": self.method, "preset": self.preset}


SETTINGS = {
    "W4g32": Setting("int4", 32),
    "W4g128": Setting("int4", 128),
    "W3g128": Setting("int3", 128),
    "W3g128a": Setting("int3-asymmetric", 128),
    "AWQ4g128": Setting("int4", 128, "awq"),
    "AWQ4g128a": Setting("int4-asymmetric", 128, "awq"),
    "AWQ3g128a": Setting("int3-asymmetric", 128, "awq"),
    "W8A8": Setting("int8-w8a8", method="rtn", preset="W8A8"),
    "FP8": Setting("fp8-dynamic", method="rtn", preset="FP8_DYNAMIC"),
}
EVALUATED, CALIBRATED = 512, 256

PEER = r"""
import json, sys, time
import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from transformers import AutoModelForCausalLM
model_path, out, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
torch.set_num_threads(2)
torch.Tensor.pin_memory = lambda tensor, *_: tensor  # which AWQ asks for, without a device too
texts = json.load(open(settings["calibration"]))["texts"]
data = Dataset.from_list([{"input_ids": t, "attention_mask": [1] * len(t)} for t in texts])
# AWQ tries each layer dozens of times: in float32, in which CPUs are faster and which rounds nothing.
model = AutoModelForCausalLM.from_pretrained(
    model_path, dtype=torch.float32 if settings["method"] == "awq" else torch.bfloat16)
weights = {"num_bits": settings["bits"], "type": "int", "symmetric": settings["symmetric"],
           "strategy": "group", "group_size": settings["group"], "observer": "memoryless_mse"
           if settings["mse"] else "memoryless_minmax"}
ignore = ["lm_head", "re:.*mlp.gate$"]
groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
if settings["preset"]:
    recipe = QuantizationModifier(targets="Linear", scheme=settings["preset"], ignore=ignore)
elif settings["method"] == "awq":
    recipe = [AWQModifier(), QuantizationModifier(ignore=ignore, config_groups=groups)]
else:
    recipe = GPTQModifier(ignore=ignore, dampening_frac=0.01, config_groups=groups)
began = time.time()
oneshot(model=model, dataset=data, recipe=recipe, output_dir=out, pipeline="sequential",
        max_seq_length=max(map(len, texts)), num_calibration_samples=len(texts),
        shuffle_calibration_samples=False, moe_calibrate_all_experts=settings["all"],
        processor=None, tokenizer=settings["model"])
print("SECONDS", time.time() - began)
"""


def fail(message):
    sys.exit(f"compare_compression.py: {message}")


def run(command):
    began = time.time()
    result = subprocess.run([str(part) for part in command], text=True, capture_output=True,
                            check=False)
    if result.returncode != 0:
        fail(f"{command[0]} failed ({result.returncode}): {result.stderr[-2000:]}")
    return result.stdout, time.time() - began


def encode(vitrine, model, path):
    """The ids of a text, by the model's tokenizer."""
    out, _ = run([vitrine, "tokenize", model, "--file", path, "--json"])
    return json.loads(out)["ids"]


def write_windows(path, texts):
    path.write_text(json.dumps({"schema": "vitrine-calibration", "schema_version": 1,
                                "tokenizer_sha256": "", "manifest": {}, "texts": texts}))
    return path


def divide(texts, windows, tokens):
    """Windows to compare on, from the heads of the texts in turn as far as they go, and windows to
    calibrate with, from the tails of all alike."""
    samples = tokens // CALIBRATED
    tails = [[samples // len(texts) + (i < samples % len(texts)), ids] for i, ids in enumerate(texts)]
    left = [(len(ids) - count * CALIBRATED) // EVALUATED for count, ids in tails]
    if min(left) < 0 or sum(left) < windows:
        fail(f"the texts have {sum(left)} windows of {EVALUATED} beside the calibration; expected "
             f"{windows}: more text, or fewer --windows or --calibration-tokens")
    taken = [0] * len(texts)
    while sum(taken) < windows:
        for i in range(len(texts)):
            taken[i] += taken[i] < left[i] and sum(taken) < windows
    evaluated = [ids[i * EVALUATED:(i + 1) * EVALUATED]
                 for ids, count in zip(texts, taken) for i in range(count)]
    calibrated = [ids[len(ids) - (i + 1) * CALIBRATED:len(ids) - i * CALIBRATED]
                  for count, ids in tails for i in range(count)]
    return evaluated, calibrated


def ratio_interval(ours, theirs, rounds=4000):
    """The ratio of mean KLs, and the middle 95 % of it over resampled windows."""
    source = random.Random(7)
    count = len(ours)
    ratios = []
    for _ in range(rounds):
        chosen = [source.randrange(count) for _ in range(count)]
        ratios.append(sum(ours[i] for i in chosen) / sum(theirs[i] for i in chosen))
    ratios.sort()
    return sum(ours) / sum(theirs), ratios[int(0.025 * rounds)], ratios[int(0.975 * rounds)]


def mean(rows, what):
    return sum(row[what] for row in rows) / len(rows)


def peer_folder(arguments, name, setting, calibration, is_all, is_mse):
    folder = arguments.work / f"{name}-peer-{'all' if is_all else 'routed'}{'-mse' * is_mse}"
    if (folder / "config.json").is_file():
        return folder, None
    script = arguments.work / "peer.py"
    script.write_text(PEER)
    settings = {"calibration": str(calibration), **setting.of_peer(), "mse": is_mse, "all": is_all,
                "model": str(arguments.model)}
    out, _ = run([arguments.python, script, arguments.model, folder, json.dumps(settings)])
    return folder, float(out.split("SECONDS")[1].split()[0])


def own_folder(arguments, name, setting, options):
    folder = arguments.work / f"{name}-{options[1] if options else 'rtn'}"
    run(["rm", "-rf", folder])
    groups = ["--group-size", setting.group] if setting.group > 0 else []
    _, seconds = run([arguments.vitrine, "quantize", arguments.model, folder, "--scheme",
                      setting.scheme, *groups, "--keep-head", "--quiet", *options])
    return folder, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--calibration-tokens", type=int, default=8192)
    parser.add_argument("--windows", type=int, default=60)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--vitrine", type=pathlib.Path, default=ROOT / "build" / "vitrine")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("compression"))
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    evaluated, calibrated = divide(
        [encode(arguments.vitrine, arguments.model, path) for path in arguments.text],
        arguments.windows, arguments.calibration_tokens)
    heads = write_windows(arguments.work / "evaluated.vcal", evaluated)
    tails = write_windows(arguments.work / "calibrated.vcal", calibrated)
    report = {}
    for name in arguments.settings.split(","):
        setting = SETTINGS[name]
        folders, seconds = {}, {}
        folders["rounded"], seconds["rounded"] = own_folder(arguments, name, setting, [])
        if setting.method == "rtn":
            folders["ours"], seconds["ours"] = folders["rounded"], seconds["rounded"]
        else:
            folders["ours"], seconds["ours"] = own_folder(
                arguments, name, setting, ["--method", setting.method, "--calibration", tails])
        for is_all in (True, False):
            what = "peer, all" if is_all else "peer, routed"
            folders[what], seconds[what] = peer_folder(
                arguments, f"{name}-{arguments.calibration_tokens}", setting, tails, is_all, True)
        out, _ = run([arguments.vitrine.parent / "bench" / "compression_windows", heads,
                      arguments.model, *dict.fromkeys(folders.values())])
        found = json.loads(out)
        rows = {what: found[str(folder)] for what, folder in folders.items()}
        print(f"\n{name}, {arguments.calibration_tokens} tokens, {len(evaluated)} windows")
        for what, windows in rows.items():
            time_text = "" if seconds[what] is None else f"{seconds[what]:7.1f} s"
            print(f"  {what:13} KL {mean(windows, 'kl'):.5f}  equal choices "
                  f"{100 * mean(windows, 'top1'):.2f} %  other experts "
                  f"{100 * mean(windows, 'flips'):.2f} %{time_text}")
        best = min(("peer, all", "peer, routed"), key=lambda what: mean(rows[what], "kl"))
        ratio = ratio_interval([row["kl"] for row in rows["ours"]],
                               [row["kl"] for row in rows[best]])
        print("  ours / %s: %.3f (%.3f to %.3f)" % (best, *ratio))
        report[name] = {"rows": rows, "ratio": ratio, "seconds": seconds}
    if arguments.json:
        arguments.json.write_text(json.dumps(report))


if __name__ == "__main__":
    main()

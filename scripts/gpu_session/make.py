# SPDX-License-Identifier: Apache-2.0
"""Makes what a bundle has besides programs: the CPU's log of the shipped model, headers of models whose
weights are drawn where they run, and the facts of the bundle (bundle.json), which are printed."""

import argparse
import datetime
import json
import pathlib
import re
import subprocess
import sys

from .model import greedy_command

MODEL = "models/fractalmoe-30m-int4"
PROMPT = "It was a dark and stormy night"

# Activations and the recorder, the most valuable first.
LARGE = {"prompt": 4096, "tokens": 64, "batches": [1, 16, 64], "repeat": 1,
         "runs": [["bf16", "deferred"], ["int8", "deferred"], ["bf16", "none"], ["int8", "none"]]}
LARGE_SHAPE = ("--shape", "30b-a3b")
SPECIALIST_SHAPE = ("--shape", "30b-a3b", "--layers", "1", "--hidden", "512", "--experts", "8",
                    "--top-k", "2", "--heads", "4", "--context", "1024")
FEDERATION = {"tokens": 25, "pairs": 20}
# What compute-sanitizer watches: it makes a kernel tens of times slower.
TWO_LAYERS_SHAPE = ("--layers", "2", "--hidden", "512", "--experts", "16", "--top-k", "4",
                    "--expert-width", "256", "--heads", "4", "--kv-heads", "2", "--vocabulary", "2000",
                    "--context", "256")

# In the emulator a token of the shipped model takes a second.
EMULATED = {
    "greedy": {"prompt": PROMPT, "tokens": 2},
    "large": {"prompt": 8, "tokens": 2, "batches": [1, 2], "repeat": 1,
              "runs": [["bf16", "deferred"], ["int8", "none"]]},
    "federation": {"tokens": 1, "pairs": 4},
    "audit_model": "tests/data/oracles/qwen3_moe", "audit_pace": 2, "audit_most": [4, 2, 4],
    "tests": {"cuda_kernel_tests": "CudaRead.*:CudaHead.ARowAloneAndInABatch",
              "cuda_executor_test": "CudaExecutorErrors.*"}}
SMALL_SHAPE = ("--layers", "2", "--hidden", "128", "--experts", "4", "--top-k", "2", "--expert-width",
               "64", "--heads", "2", "--kv-heads", "1", "--head-dim", "64", "--vocabulary", "300",
               "--context", "256")


def call(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"gpu-session: {pathlib.Path(str(words[0])).name} failed: {done.stderr.strip()}")
    return done.stdout


def make_header(root, path, shape):
    """The bytes of the model that it is the header of."""
    told = call(sys.executable, root / "bench/make_moe_gguf.py", path, *shape, "--type", "q4_0",
                "--header")
    gigabytes = re.search(r"([\d.]+) GB of tensors", told)
    return int(float(gigabytes[1]) * 1e9) + (16 << 20)


def main():
    parser = argparse.ArgumentParser()
    for name in ("root", "build", "staging"):
        parser.add_argument("--" + name, type=pathlib.Path, required=True)
    parser.add_argument("--payload", required=True)
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("tests", nargs="+")
    arguments = parser.parse_args()
    root, staging = arguments.root, arguments.staging
    vitrine = arguments.build / "vitrine"
    commit = re.search(r"^commit +([0-9a-f]+)(-dirty)?", call(vitrine, "--version"), re.MULTILINE)
    facts = {
        "commit": commit[1] if commit else "unknown",
        "changed": bool(commit and commit[2]),
        "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds"),
        "payload": arguments.payload, "emulated": arguments.emulated, "model": MODEL,
        "greedy": {"prompt": PROMPT, "tokens": 200},
        "devices": {"fused": ["--device", "cuda", "--kernels", "fused"],
                    "reference": ["--device", "cpu" if arguments.emulated else "cuda",
                                  "--kernels", "reference"]},
        "audit_model": MODEL, "audit_pace": 100, "audit_most": [1000, 50, 200],
        "large": dict(LARGE), "federation": dict(FEDERATION), "two_layers": {},
        "tests": [{"program": test} for test in arguments.tests]}
    large, specialist, watched = LARGE_SHAPE, SPECIALIST_SHAPE, TWO_LAYERS_SHAPE
    if arguments.emulated:
        filters = EMULATED["tests"]
        facts.update(EMULATED)
        facts["tests"] = [{"program": test, "filter": filters[test]} for test in arguments.tests]
        large = specialist = watched = SMALL_SHAPE
    for name, shape in (("large", large), ("federation", specialist),
                        ("two_layers", watched)):
        header = f"headers/{name}.gguf"
        (staging / "headers").mkdir(exist_ok=True)
        facts[name]["bytes"] = make_header(root, staging / header, shape)
        facts[name]["header"] = header
    (staging / "cpu").mkdir()
    call(vitrine, *greedy_command(root / MODEL, facts["greedy"], staging / "cpu/greedy.json"))
    json.dump(facts, sys.stdout, indent=1)


if __name__ == "__main__":
    main()

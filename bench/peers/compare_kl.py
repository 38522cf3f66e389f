# SPDX-License-Identifier: Apache-2.0
"""How far Vitrine's and llama.cpp's predictions are from those of the same file's weights in float32.

    compare_kl.py MODEL.gguf TEXT [-p 500] [--threads 2] [--kv-type f32|i16] [--without-amx]
                  [--row-logits build/tests/row_logits] [--llama-logits PROGRAM] [--json OUT]

llama.cpp's program is built as compare.py builds its own (--cache), unless --llama-logits names it.

The file's weights, dequantized to float32 by `gguf`, in transformers give the reference distribution
of each of the first -p positions of the text (architecture `llama`); the Kullback-Leibler divergence from it, in nats, is averaged.
Whether ours is larger than llama.cpp's is a matter of chance as long as the interval of their ratio
holds 1: positions are drawn again 10,000 times (bootstrap, pairs kept), 95 % of the ratios lie in
it. Needs the packages of tests/requirements.txt.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from compare import ROOT, build_llama, run

sys.path.insert(0, str(ROOT / "tests" / "model"))
from dequantized import dequantized_model  # noqa: E402

DRAWS = 10_000


def kl(reference, path):
    """[positions] of divergences from the reference's log-probabilities."""
    logits = np.fromfile(path, np.float32).reshape(reference.shape)
    other = torch.log_softmax(torch.from_numpy(logits).double(), -1)
    return (reference.exp() * (reference - other)).sum(-1).numpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("-p", "--positions", type=int, default=500)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-type", choices=("f32", "i16"),
                        help="what ours keeps keys and values in, other than its default; "
                             "llama.cpp's are float16")
    parser.add_argument("--without-amx", action="store_true")
    parser.add_argument("--row-logits", type=pathlib.Path,
                        default=ROOT / "build" / "tests" / "row_logits")
    parser.add_argument("--llama-logits", type=pathlib.Path)
    parser.add_argument("--vitrine", type=pathlib.Path, default=ROOT / "build" / "vitrine")
    parser.add_argument("--cache", type=pathlib.Path,
                        default=pathlib.Path.home() / ".cache" / "vitrine" / "peers")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    theirs = arguments.llama_logits or build_llama(arguments.cache, os.cpu_count(),
                                                   not arguments.without_amx, "llama_logits")
    text = arguments.text.read_text()[:arguments.positions * 16]
    ids = json.loads(run([arguments.vitrine, "tokenize", arguments.model, "-p", text, "--json"],
                         "vitrine tokenize", stdout=subprocess.PIPE))["ids"][:arguments.positions]
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    model = dequantized_model(arguments.model)
    with torch.inference_mode():
        reference = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    found = {}
    kv_type = [arguments.kv_type] if arguments.kv_type else []
    for name, program, more in (("vitrine", arguments.row_logits, kv_type),
                                ("llama.cpp", theirs, [])):
        with tempfile.TemporaryDirectory() as scratch:
            out = pathlib.Path(scratch, "logits")
            run([program, arguments.model, arguments.threads, out, *more], name,
                input=" ".join(map(str, ids)))
            found[name] = kl(reference, out)
    ours, other = found["vitrine"], found["llama.cpp"]
    draws = np.random.default_rng(1).integers(0, len(ids), (DRAWS, len(ids)))
    ratios = ours[draws].mean(1) / other[draws].mean(1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    result = {"positions": len(ids), "vitrine": ours.mean(), "llama.cpp": other.mean(),
              "ratio": ours.mean() / other.mean(), "low": low, "high": high}
    for name, divergence in found.items():
        print(f"{name:<10} {divergence.mean():.6f} nats (median {np.median(divergence):.6f}, "
              f"largest {divergence.max():.4f}) over {len(ids)} positions")
    print(f"ratio      {result['ratio']:.3f} ({low:.3f} to {high:.3f})")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1, default=float) + "\n")


if __name__ == "__main__":
    main()

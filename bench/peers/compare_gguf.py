# SPDX-License-Identifier: Apache-2.0
"""Vitrine's GGUF files beside llama-quantize's, of the same types and the same importances.

    compare_gguf.py MODEL --text FILE… --llama-tools FOLDER [--types q4_k_m,q5_k_m,q6_k,q4_0,q8_0]
                    [--calibration-tokens 8192] [--windows 60] [--vitrine build/vitrine]
                    [--work FOLDER]

MODEL is a float checkpoint folder, --llama-tools a folder with llama-quantize. Texts are cut as by
compare_compression.py. Both make their files of the BF16 file that Vitrine writes, with the
importances that `vitrine calibrate --imatrix` measures; build/bench/compression_windows holds them
against the folder. Printed are bytes, mean KL, equal choices and other experts of each, and the
ratio of the mean KLs with a paired bootstrap over windows (95 %). Types whose name has no mixture
are made with --pure.
"""

import argparse
import json
import pathlib
import sys

import compare_compression as compression

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEER_TYPES = {"q4_k_m": "Q4_K_M", "q5_k_m": "Q5_K_M", "q6_k": "Q6_K", "q4_k": "Q4_K_S",
              "q5_k": "Q5_K_S", "q4_0": "Q4_0", "q8_0": "Q8_0"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--llama-tools", type=pathlib.Path, required=True)
    parser.add_argument("--types", default="q4_k_m,q5_k_m,q6_k,q4_0,q8_0")
    parser.add_argument("--calibration-tokens", type=int, default=8192)
    parser.add_argument("--windows", type=int, default=60)
    parser.add_argument("--vitrine", type=pathlib.Path, default=ROOT / "build" / "vitrine")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("compression"))
    arguments = parser.parse_args()
    run, vitrine = compression.run, arguments.vitrine
    arguments.work.mkdir(parents=True, exist_ok=True)
    evaluated, calibrated = compression.divide(
        [compression.encode(vitrine, arguments.model, path) for path in arguments.text],
        arguments.windows, arguments.calibration_tokens)
    heads = compression.write_windows(arguments.work / "evaluated.vcal", evaluated)
    tails = compression.write_windows(arguments.work / "calibrated.vcal", calibrated)
    source, matrix = arguments.work / "source.gguf", arguments.work / "importance.gguf"
    for path in (source, matrix):
        path.unlink(missing_ok=True)
    run([vitrine, "quantize", arguments.model, source, "--type", "bf16", "--quiet"])
    run([vitrine, "calibrate", arguments.model, "--calibration", tails, "--imatrix", matrix])
    for name in arguments.types.split(","):
        ours, theirs = arguments.work / f"ours-{name}.gguf", arguments.work / f"peer-{name}.gguf"
        for path in (ours, theirs):
            path.unlink(missing_ok=True)
        run([vitrine, "quantize", arguments.model, ours, "--type", name, "--imatrix", matrix,
             "--quiet"])
        pure = [] if name.endswith("_m") else ["--pure"]
        run([arguments.llama_tools / "llama-quantize", *pure, "--imatrix", matrix, source, theirs,
             PEER_TYPES[name], "2"])
        out, _ = run([vitrine.parent / "bench" / "compression_windows", heads, arguments.model, ours,
                      theirs])
        found = json.loads(out)
        print(f"\n{name}, {arguments.calibration_tokens} tokens, {len(evaluated)} windows")
        for what, path in (("ours", ours), ("llama-quantize", theirs)):
            rows = found[str(path)]
            print(f"  {what:15} {path.stat().st_size:10} bytes  KL "
                  f"{compression.mean(rows, 'kl'):.5f}  equal choices "
                  f"{100 * compression.mean(rows, 'top1'):.2f} %  other experts "
                  f"{100 * compression.mean(rows, 'flips'):.2f} %")
        ratio = compression.ratio_interval([row["kl"] for row in found[str(ours)]],
                                           [row["kl"] for row in found[str(theirs)]])
        print("  ours / llama-quantize: %.3f (%.3f to %.3f)" % ratio)


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Vitrine's GGUF files beside llama-quantize's, of the same types and the same importances.

    compare_gguf.py MODEL --text FILE… --llama-tools FOLDER [--types q4_k_m,iq4_xs,iq3_s]
                    [--calibration-tokens 8192] [--windows 60] [--vitrine build/vitrine]
                    [--work FOLDER]

MODEL is a float checkpoint folder, --llama-tools a folder with llama-quantize and, for a check,
llama-perplexity. Texts are cut as by compare_compression.py. Both make their files of the BF16 file
that Vitrine writes, with the importances that `vitrine calibrate --imatrix` measures;
build/bench/compression_windows holds them against the folder. Printed are bytes, mean KL, equal
choices and other experts of each, the seconds that it took to make, llama.cpp's perplexity on the
head of the first text, and the ratio of the mean KLs with a paired bootstrap over windows (95 %).
Types that Vitrine makes of every matrix alike are made with --pure.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

import compare_compression as compression

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What llama-quantize calls the mixture of a type that is none in Vitrine.
PURE_TYPES = {"q8_0": "Q8_0", "q6_k": "Q6_K", "q5_k": "Q5_K_S", "q5_1": "Q5_1", "q5_0": "Q5_0",
              "q4_k": "Q4_K_S", "q4_1": "Q4_1", "q4_0": "Q4_0", "q3_k": "Q3_K_S"}
DEFAULT_TYPES = "q8_0,q6_k,q5_k_m,q4_k_m,q4_k_s,iq4_xs,iq4_nl,q3_k_l,q3_k_m,q3_k_s,iq3_m,iq3_s,q2_k"


def perplexity(tools, file, text):
    """What llama.cpp says of the file, or a dash where its tool is not there."""
    program = tools / "llama-perplexity"
    if not program.is_file():
        return "-"
    result = subprocess.run([program, "-m", file, "-f", text, "-c", "512", "--chunks", "16"],
                            text=True, capture_output=True, check=False)
    found = re.search(r"Final estimate: PPL = ([\d.]+)", result.stdout + result.stderr)
    return found.group(1) if found else f"does not load ({result.returncode})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--llama-tools", type=pathlib.Path, required=True)
    parser.add_argument("--types", default=DEFAULT_TYPES)
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
        _, our_seconds = run([vitrine, "quantize", arguments.model, ours, "--type", name,
                              "--imatrix", matrix, "--quiet"])
        pure = ["--pure"] if name in PURE_TYPES else []
        _, their_seconds = run([arguments.llama_tools / "llama-quantize", *pure, "--imatrix",
                                matrix, source, theirs, PURE_TYPES.get(name, name.upper()), "2"])
        out, _ = run([vitrine.parent / "bench" / "compression_windows", heads, arguments.model, ours,
                      theirs])
        found = json.loads(out)
        print(f"\n{name}, {arguments.calibration_tokens} tokens, {len(evaluated)} windows")
        for what, path, seconds in (("ours", ours, our_seconds),
                                    ("llama-quantize", theirs, their_seconds)):
            rows = found[str(path)]
            print(f"  {what:15} {path.stat().st_size:10} bytes  KL "
                  f"{compression.mean(rows, 'kl'):.5f}  equal choices "
                  f"{100 * compression.mean(rows, 'top1'):.2f} %  other experts "
                  f"{100 * compression.mean(rows, 'flips'):.2f} %  {seconds:.1f} s  llama.cpp's "
                  f"perplexity {perplexity(arguments.llama_tools, path, arguments.text[0])}")
        ratio = compression.ratio_interval([row["kl"] for row in found[str(ours)]],
                                           [row["kl"] for row in found[str(theirs)]])
        print("  ours / llama-quantize: %.3f (%.3f to %.3f)" % ratio)


if __name__ == "__main__":
    sys.exit(main())

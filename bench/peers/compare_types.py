# SPDX-License-Identifier: Apache-2.0
"""Measures Vitrine and llama.cpp on a mixture of experts with random blocks of each GGUF type, by turns.

    compare_types.py [TYPE ...] [--shape olmoe] [--layers 4] [--pairs 3] [--threads 2] [-p 256] [-n 64]
                     [--work FOLDER] [compare.py's options: --ik-llama FOLDER, --vitrine PROGRAM]

Each type's file is written by make_moe_gguf.py, measured by compare.py, and deleted. A line says how
large the file is, the tokens a second of both (medians), the ratio of the medians, and the range of
the rounds' own ratios. Without TYPE all types that llama.cpp reads are measured; the smaller the
file, the more of a token's time is arithmetic.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import compare

HERE = pathlib.Path(__file__).resolve().parent
TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq1_s", "iq1_m",
         "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs", "tq1_0", "tq2_0", "mxfp4",
         "nvfp4", "q1_0", "q2_0")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("types", nargs="*", default=TYPES, metavar="TYPE")
    parser.add_argument("--shape", default="olmoe")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=pathlib.Path, help="where files are written")
    return parser.parse_known_args()


def cell(results, peer, figure):
    """What we reach, what a peer does, and the ratios."""
    found = compare.compare(results, peer, figure)
    if found["theirs"] is None:
        return "-"
    return (f"{found['ours']:.1f} / {found['theirs']:.1f} = {found['ratio']:.2f} "
            f"({found['lowest']:.2f} to {found['highest']:.2f})")


def measure(name, arguments, others, folder):
    model = folder / f"{name}.gguf"
    report = folder / f"{name}.json"
    subprocess.run([sys.executable, HERE.parent / "make_moe_gguf.py", model, "--shape", arguments.shape,
                    "--layers", str(arguments.layers), "--type", name],
                   check=True, stdout=subprocess.DEVNULL)
    try:
        subprocess.run([sys.executable, HERE / "compare.py", model, "--threads", str(arguments.threads),
                        "--json", report, *others], check=True, stdout=subprocess.DEVNULL)
        size = model.stat().st_size
    finally:
        model.unlink(missing_ok=True)
    results = json.loads(report.read_text())[str(arguments.threads)]
    for peer in results[0]:
        if peer != "vitrine":
            print(f"| {name} | {size / 2**20:.0f} | {peer} | {cell(results, peer, 'decode_tps')} | "
                  f"{cell(results, peer, 'prefill_tps')} |", flush=True)


def main():
    arguments, others = parse_arguments()
    print("| type | MiB | beside | decode, tokens/s | prefill, tokens/s |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
        for name in arguments.types:
            try:
                measure(name, arguments, others, pathlib.Path(folder))
            except (subprocess.CalledProcessError, OSError) as error:
                print(f"| {name} | failed: {error} |", flush=True)


if __name__ == "__main__":
    main()

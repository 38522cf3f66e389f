# SPDX-License-Identifier: Apache-2.0
"""Vitrine's sampler and llama.cpp's on the same logits, by turns on one core.

    compare_sampler.py [--vocabulary 150000] [--rounds 300] [--pairs 3]
                       [--sampler-bench build/bench/sampler_bench] [--llama-sampler PROGRAM]

llama.cpp's program is built as compare.py builds its own (--cache), unless --llama-sampler names it.
Printed are the medians of the pairs' medians, in microseconds a token.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess

from compare import ROOT, build_llama, run


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=150000)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--sampler-bench", type=pathlib.Path,
                        default=ROOT / "build" / "bench" / "sampler_bench")
    parser.add_argument("--llama-sampler", type=pathlib.Path)
    parser.add_argument("--cache", type=pathlib.Path,
                        default=pathlib.Path.home() / ".cache" / "vitrine" / "peers")
    arguments = parser.parse_args()
    theirs = arguments.llama_sampler or build_llama(arguments.cache, os.cpu_count(), True,
                                                    "llama_sampler")
    programs = {"vitrine": arguments.sampler_bench, "llama.cpp": theirs}
    times = {}
    for pair in range(arguments.pairs):
        for name in list(programs)[::1 if pair % 2 == 0 else -1]:
            out = run([programs[name], arguments.vocabulary, arguments.rounds], name,
                      stdout=subprocess.PIPE)
            for case, found in json.loads(out)["us"].items():
                times.setdefault(case, {}).setdefault(name, []).append(found["median"])
    for case, found in times.items():
        print(f"{case:<42}" + "   ".join(f"{name} {statistics.median(values):8.1f} us"
                                         for name, values in found.items()))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Two builds of Vitrine on the same model, or one on two models, by turns on the same machine.

    compare_versions.py OLD/vitrine NEW/vitrine MODEL [--new-model MODEL] [-p 256] [-n 64]
                        [--threads 2] [--pairs 100]

Each of a pair is a process of its own; every other pair begins with the other build. Printed are the
median of the pairs' ratios (new to old, of tokens a second) for prefill and decode, and the 95 %
interval of that median by order statistics.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys

FIGURES = ("prefill_tps", "decode_tps")


def measure(program, model, arguments):
    command = [program, "bench", "generate", model, "-p", arguments.prompt, "-n",
               arguments.tokens, "--threads", arguments.threads, "--repeat", 1, "--json"]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"compare_versions.py: {program}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def median_interval(values):
    """The 95 % interval of the median: the order statistics of a binomial with p = 1/2."""
    values = sorted(values)
    count = len(values)
    cumulated, rank = 0.0, 0
    while rank < count // 2:
        cumulated += math.comb(count, rank) / 2**count
        if cumulated > 0.025:
            break
        rank += 1
    return values[max(rank - 1, 0)], values[min(count - rank, count - 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("model")
    parser.add_argument("--new-model", help="what the new build runs (default: MODEL)")
    parser.add_argument("-p", dest="prompt", type=int, default=256)
    parser.add_argument("-n", dest="tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=100)
    arguments = parser.parse_args()
    ratios = {figure: [] for figure in FIGURES}
    for pair in range(-1, arguments.pairs):  # the first brings the file into the page cache
        sides = {"old": (arguments.old, arguments.model),
                 "new": (arguments.new, arguments.new_model or arguments.model)}
        order = ("old", "new") if pair % 2 == 0 else ("new", "old")
        found = {side: measure(*sides[side], arguments) for side in order}
        if pair >= 0:
            for figure in FIGURES:
                ratios[figure].append(found["new"][figure] / found["old"][figure])
    for figure in FIGURES:
        low, high = median_interval(ratios[figure])
        print(f"{figure:<12} new / old {statistics.median(ratios[figure]):.4f}   95 % interval "
              f"{low:.4f} to {high:.4f}   {arguments.pairs} pairs")


if __name__ == "__main__":
    main()

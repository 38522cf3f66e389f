# SPDX-License-Identifier: Apache-2.0
"""Prints which share of guesses is right, by their place behind the text, where those before were.

    acceptance.py MODEL KIND=HEADS ... [--prompts FILE]

Of each heads and temperature: tokens of a pass with guesses, then the first guess, the second, ….
"""

import argparse
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def measure(arguments, heads, temperature):
    """The counts of `bench speculate`."""
    command = [arguments.vitrine, "bench", "speculate", arguments.model, "--candidates", heads,
               "--prompts", arguments.prompts, "-n", str(arguments.tokens), "--repeat", "1",
               "--draft-max", str(arguments.draft_max), "--temperature", str(temperature),
               "--json", "-t", str(arguments.threads), "--raw", "--draft-ungated"]
    answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    found = answer["candidates"][0]
    if found["identical"] != found["prompts"]:
        raise SystemExit(f"{heads}: {found['identical']} answers of {found['prompts']} are those "
                         "without guesses; expected all")
    return found["counts"]


def by_step(histogram):
    """The share of right guesses at each step, among passes in which all before it were right."""
    reached = [sum(histogram[step:]) for step in range(len(histogram))]
    return [after / before if before else 0.0 for before, after in zip(reached, reached[1:])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="folder of the model, or a .gguf file")
    parser.add_argument("heads", nargs="+", help="as --speculate of generate has them")
    parser.add_argument("--prompts", default=str(ROOT / "bench" / "speculation_free.jsonl"))
    parser.add_argument("--tokens", type=int, default=128, help="of an answer")
    parser.add_argument("--draft-max", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--vitrine", default=str(ROOT / "build" / "vitrine"))
    arguments = parser.parse_args()
    print("| heads | temperature | tokens a pass | right, by step |\n|---|---|---|---|")
    for heads in arguments.heads:
        for temperature in (0, 0.7, 1):
            counts = measure(arguments, heads, temperature)
            steps = " ".join(f"{share:.2f}" for share in by_step(counts["acceptance_histogram"]))
            print(f"| {heads} | {temperature} | {counts['mean_acceptance_length']:.2f} | {steps} |",
                  flush=True)


if __name__ == "__main__":
    main()

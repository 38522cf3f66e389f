# SPDX-License-Identifier: Apache-2.0
"""Lets a model write texts for the training of its heads.

    write_texts.py MODEL TEXTS --prompts tales|chat [--tokens N] [--minutes M]

Appends a line {"ids": [...], "prompt": how many of them are the prompt's, "temperature": T} for each
text to the file TEXTS. A third of the prompts is answered greedily, the others at 0.7 and at 1.
"""

import argparse
import json
import pathlib
import subprocess
import time

from prompts import prompts

VITRINE = pathlib.Path(__file__).resolve().parents[2] / "build" / "vitrine"
ANSWERS = {0.0: 1, 0.7: 8, 1.0: 8}  # to a prompt, by temperature


def run(*command):
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def write(arguments, prompt, is_message, temperature, seed):
    """Yields the texts' lines."""
    command = [arguments.vitrine, "generate", arguments.model, "-p", prompt, "--json", "-q",
               "-n", str(arguments.length), "--temperature", str(temperature), "--top-k", "0",
               "--top-p", "1", "--min-p", "0.02", "--seed", str(seed),
               "--n-best", str(ANSWERS[temperature]), "-t", str(arguments.threads)]
    command += ["--chat"] if is_message else []
    answer = run(*command)
    before = run(arguments.vitrine, "tokenize", arguments.model, "-p",
                 answer.get("prompt", prompt), "--json")["ids"]
    if len(before) != answer["prompt_tokens"]:
        raise SystemExit(f"{arguments.model}: the prompt {prompt!r} is {answer['prompt_tokens']} "
                         f"tokens to generate, and {len(before)} to tokenize; expected as many")
    for candidate in answer.get("candidates", [answer]):
        yield {"ids": before + candidate["tokens"], "prompt": len(before),
               "temperature": temperature}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="folder of the model, or a .gguf file")
    parser.add_argument("texts", type=pathlib.Path, help="the file that texts are appended to")
    parser.add_argument("--prompts", choices=("tales", "chat"), required=True)
    parser.add_argument("--tokens", type=int, default=400_000, help="of all texts together")
    parser.add_argument("--length", type=int, default=300, help="tokens of a text at most")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--vitrine", default=str(VITRINE))
    arguments = parser.parse_args()
    end, count = time.monotonic() + 60 * arguments.minutes, 0
    with arguments.texts.open("a", encoding="utf-8") as file:
        for turn, (prompt, is_message) in enumerate(prompts(arguments.prompts, arguments.seed)):
            temperature = list(ANSWERS)[turn % len(ANSWERS)]
            for line in write(arguments, prompt, is_message, temperature,
                              arguments.seed * 1_000_000 + turn):
                file.write(json.dumps(line) + "\n")
                count += len(line["ids"]) - line["prompt"]
            file.flush()
            if count >= arguments.tokens or time.monotonic() > end:
                break
    print(f"{arguments.texts}: {count} tokens more")


if __name__ == "__main__":
    main()

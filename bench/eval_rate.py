# SPDX-License-Identifier: Apache-2.0
"""Measures how much of the engine's own rates an evaluation reaches.

    eval_rate.py VITRINE MODEL [--parallel 8] [--groups texts,choices,answers] [--json FILE]

`vitrine eval` asks a group of the core suite's tasks, and `vitrine bench generate` reads prompts as
long as the group's are in the mean, and decodes as many answers side by side. Each runs on one thread,
and what is compared is processor time, which other work on the machine hardly changes: loading is
taken off (that of a second `eval`, which finds its work done), and a token's cost is the difference of
two runs of the bench. The ratio is what the tokens of the record cost by the bench over what they cost
in the evaluation. Texts are asked for the logits of each token, and so is the bench beside them; a
second ratio has a prompt's rate, with the logits of its last token alone. A prompt whose reference is
scored, too, is read twice. Tokens of choices are not in the record and not counted, which makes the
ratio smaller than it is.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile

GROUPS = {
    "texts": "prose",
    "choices": "needle-choice,mqar",
    "answers": "arithmetic-steps,word-problems,refusals,probes",
}


def processor_seconds(*command):
    """Runs a command, and returns what it took of all processors."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if told.returncode != 0:
        sys.exit(f"eval_rate.py: {told.stderr.strip()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def num_made(item):
    return len(item.get("tokens", ()))


def evaluate(arguments, tasks, out):
    """Returns seconds, items, tokens that were read, and tokens that were generated."""
    command = [arguments.vitrine, "eval", arguments.model, "--tasks", tasks, "--parallel",
               arguments.parallel, "--out", out, "--threads", 1, "--quiet"]
    seconds = processor_seconds(*command)
    seconds -= processor_seconds(*command)
    items = [row for row in map(json.loads, out.read_text().splitlines()) if "task" in row]
    read = sum(item["prompt_tokens"] * (2 if "reference_tokens" in item and num_made(item) else 1)
               + item.get("reference_tokens", 0) for item in items)
    return seconds, len(items), read, sum(num_made(item) for item in items)


def costs(arguments, prompt, *logits):
    """Returns the seconds of a prompt's token, and of one of --parallel answers' side by side."""

    def bench(answer, repeat, *more):
        return processor_seconds(arguments.vitrine, "bench", "generate", arguments.model, "-p",
                                 prompt, "-n", answer, "--repeat", repeat, "--audit", "none",
                                 "--threads", 1, "--json", *logits, *more)

    batch = ["--batch", arguments.parallel]
    one = (bench(34, 3) - bench(2, 3)) / (3 * 32)
    prompts = (bench(2, 9) - bench(2, 1)) / 8
    together = (bench(34, 3, *batch) - bench(2, 3, *batch)) / (3 * 32)
    return (prompts - 2 * one) / prompt, (together - one) / arguments.parallel


def measure(arguments, group, out):
    seconds, items, read, made = evaluate(arguments, GROUPS[group], out)
    result = {"tasks": GROUPS[group], "items": items, "read": read, "made": made,
              "seconds": seconds}

    def beside(*logits):
        prompt_token, answer_token = costs(arguments, max(2, round(read / items)), *logits)
        return {"read_rate": 1 / prompt_token, "made_rate": 1 / answer_token,
                "ratio": (read * prompt_token + made * answer_token) / seconds}

    if group == "texts":
        return result | beside("--all-logits") | {"prompts": beside()}
    return result | beside()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vitrine", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--groups", default=",".join(GROUPS))
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.vitrine = arguments.vitrine.resolve()
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        for group in arguments.groups.split(","):
            out = pathlib.Path(folder) / f"{len(result)}.eval"
            one = result[group] = measure(arguments, group, out)
            print(f"{group}: {one['ratio']:.2f} of the engine's own rates; {one['items']} items, "
                  f"{one['read']} tokens read and {one['made']} generated in {one['seconds']:.2f} s "
                  f"of one thread; the engine reads {one['read_rate']:.0f} tokens/s and decodes "
                  f"{one['made_rate']:.0f}", flush=True)
            if "prompts" in one:
                print(f"{group}: {one['prompts']['ratio']:.2f} of the rate of prompts, of which one "
                      f"token alone has logits: {one['prompts']['read_rate']:.0f} tokens/s",
                      flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

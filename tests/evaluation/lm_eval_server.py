# SPDX-License-Identifier: Apache-2.0
"""Holds lm-eval through `vitrine serve` to `vitrine eval`, item by item.

    lm_eval_server.py VITRINE MODEL

MODEL is a folder with a tokenizer.json, which lm-eval reads, too. Needs `pip install
lm_eval[api]==0.4.13 transformers`, no torch; not run in CI. One task of log-likelihoods and one of
generation go through `local-completions`. Printed are how many items are alike, and the largest
difference of log-probabilities; it fails where an answer or the order of choices differs.
"""

import base64
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

TOOL, MODEL = sys.argv[1:3]
os.environ.update(HF_HUB_OFFLINE="1", VITRINE_TOOL=TOOL)
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "http"))

import lm_eval
from lm_eval_oracle import task_config, write_lines
from served import served

CHOICES = [
    ("The king and the queen lived in a", [" castle", " spoon", " sentence"], 0),
    ("The sun rises in the", [" soup", " morning", " pocket"], 1),
    ("She opened the door and walked into the", [" number", " colour", " room"], 2),
    ("The ship sailed across the", [" sea", " word", " minute"], 0),
    ("He was so tired that he fell", [" green", " asleep", " seven"], 1),
    ("The children played in the", [" thought", " because", " garden"], 2),
    ("It rained all night, and in the morning the streets were", [" wet", " loud", " early"], 0),
    ("The old man told them a long", [" blue", " story", " under"], 1),
]
PROMPTS = ["Once upon a time", "The king said to his son:", "In the middle of the forest",
           "The first thing she saw was", "There was once a poor", "After many years the",
           "The law of the land says that", "When the water had gone"]
SUITE = """[suite]
name = "beside"
version = "1"
seed = 1

[[task]]
name = "choices"
domain = "text"
kind = "choice"
form = "text"
items = "choices.jsonl"
licence = "CC0-1.0"
source = "this file"

[[task]]
name = "answers"
domain = "text"
kind = "answer"
form = "text"
items = "answers.jsonl"
licence = "CC0-1.0"
source = "this file"
scorer = "contains"
stop = ["\\n"]
max_new_tokens = 16
"""


def unpack(text):
    """Reads the record's doubles: base64 of their bytes."""
    data = base64.b64decode(text)
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def evaluate_here(folder):
    """Returns what `vitrine eval` found, by task and id."""
    (folder / "beside.toml").write_text(SUITE)
    write_lines(folder / "choices.jsonl", [
        {"id": f"c{i}", "prompt": prompt, "choices": choices, "answer": answer}
        for i, (prompt, choices, answer) in enumerate(CHOICES)])
    write_lines(folder / "answers.jsonl", [
        {"id": f"a{i}", "prompt": prompt, "answer": ["the"]} for i, prompt in enumerate(PROMPTS)])
    out = folder / "here.eval"
    subprocess.run([TOOL, "eval", MODEL, "--suite", folder / "beside.toml", "--out", out, "--quiet"],
                   check=True)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    return {(row["task"], row["id"]): row for row in rows if "task" in row}


def evaluate_through(folder, url):
    told = lm_eval.simple_evaluate(
        model="local-completions", log_samples=True, bootstrap_iters=0,
        model_args={"base_url": url + "/v1/completions", "model": "served", "tokenizer": MODEL,
                    "num_concurrent": 2, "max_retries": 1},
        tasks=[task_config(folder, "choices", output_type="multiple_choice",
                           doc_to_text="{{prompt}}", doc_to_choice="{{choices}}",
                           doc_to_target="answer", target_delimiter="",
                           metric_list=[{"metric": "acc"}]),
               task_config(folder, "answers", output_type="generate_until",
                           doc_to_text="{{prompt}}", doc_to_target="{{answer[0]}}",
                           metric_list=[{"metric": "exact_match"}],
                           generation_kwargs={"until": ["\n"], "max_gen_toks": 16,
                                              "do_sample": False})])
    return told["samples"]


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        here = evaluate_here(folder)
        with served(MODEL, "--alias", "served") as server:
            there = evaluate_through(folder, server.url)
        most, alike = 0, 0
        for sample in there["choices"]:
            own = unpack(here["choices", sample["doc"]["id"]]["choice_logprobs"])
            other = [float(value) for value, _ in sample["filtered_resps"]]
            most = max([most, *(abs(a - b) for a, b in zip(own, other, strict=True))])
            alike += own.index(max(own)) == other.index(max(other))
        print(f"choices: {alike} of {len(CHOICES)} alike; log-probabilities differ by at most "
              f"{most:.2g} nats")
        same = sum(here["answers", one["doc"]["id"]]["answer"] == one["filtered_resps"][0]
                   for one in there["answers"])
        print(f"answers: {same} of {len(PROMPTS)} alike")
        if (alike, same) != (len(CHOICES), len(PROMPTS)) or most > 1e-9:
            sys.exit(1)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""generate --speculate exit=N and hispec=N against transformers: a model of the first N layers
alone guesses, the whole one checks, and the counts are those of `generate --json`.

    early_exit_test.py VITRINE ORACLES [unittest arguments]

VITRINE is the command line tool, ORACLES the folder of checkpoints (tests/data/oracles.tar.xz).
Ends with 77 (skipped) where the oracle packages are not installed.
"""

import copy
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

try:
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

VITRINE = os.path.abspath(sys.argv[1])
ORACLES = pathlib.Path(sys.argv[2]).resolve()
NAMES = ("llama", "qwen3", "olmoe", "qwen3_moe")
PROMPT = "Once upon a time"
NUM_TOKENS = 60

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)


def write_folder(source, folder):
    """The oracle with a tokenizer whose ids are bytes."""
    shutil.copytree(source, folder)
    visible = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    others = [b for b in range(256) if b not in visible]
    vocab = {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(others)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


class Greedy:
    """What a model chooses behind tokens."""

    def __init__(self, model):
        self.model = model
        self.known = {}

    def next(self, tokens):
        key = tuple(tokens)
        if key not in self.known:
            with torch.inference_mode():
                self.known[key] = int(self.model(torch.tensor([tokens])).logits[0, -1].argmax())
        return self.known[key]

    def answer(self, tokens, count):
        tokens = list(tokens)
        for _ in range(count):
            tokens.append(self.next(tokens))
        return tokens[len(tokens) - count:]


def first_layers(model, count):
    """The model with its first layers alone, its own norm and head behind them."""
    cut = copy.deepcopy(model)
    cut.model.layers = cut.model.layers[:count]
    cut.config.num_hidden_layers = count
    return cut


def simulate(whole, first, prompt, drafts):
    """The counts of an answer that the first layers guess."""
    truth = whole.answer(prompt, NUM_TOKENS)
    histogram = [0] * (drafts + 1)
    made, proposed = 1, 0  # the prompt's pass chooses the first one
    while made < NUM_TOKENS:
        count = min(drafts, NUM_TOKENS - made - 1)
        guesses = first.answer(prompt + truth[:made], count)
        right = 0
        while right < count and guesses[right] == truth[made + right]:
            right += 1
        if count > 0:
            histogram[right] += 1
        proposed += count
        made += right + 1
    return truth, proposed, histogram


class EarlyExitTest(unittest.TestCase):
    def generate(self, folder, kind, drafts):
        result = subprocess.run(
            [VITRINE, "generate", str(folder), "-p", PROMPT, "-n", str(NUM_TOKENS), "--json",
             "--temperature", "0", "--ignore-end-of-text", "--threads", "1",
             "--speculate", kind, "--draft-max", str(drafts), "--draft-ungated"],
            capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_counts(self):
        accepted = 0
        for name in NAMES:
            with tempfile.TemporaryDirectory() as scratch:
                folder = pathlib.Path(scratch, name)
                write_folder(ORACLES / name, folder)
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    folder, dtype=torch.float32, attn_implementation="eager").eval()
                whole = Greedy(model)
                layers = model.config.num_hidden_layers
                for count in range(1, layers):
                    first = Greedy(first_layers(model, count))
                    for drafts in (1, 4, 7):
                        truth, proposed, histogram = simulate(
                            whole, first, list(PROMPT.encode()), drafts)
                        # A check between the exits changes who computes a guess, and no guess.
                        kinds = [f"exit={count}"] + ([f"hispec={count}"] if count > 1 else [])
                        for kind in kinds:
                            with self.subTest(name=name, kind=kind, drafts=drafts):
                                found = self.generate(folder, kind, drafts)
                                counts = found["speculation"]
                                self.assertIsNone(counts["problem"])
                                self.assertEqual(found["tokens"], truth)
                                self.assertEqual(counts["num_draft_tokens"], proposed)
                                self.assertEqual(counts["acceptance_histogram"], histogram)
                                accepted += counts["num_accepted_draft_tokens"]
        self.assertGreater(accepted, 100)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])

# SPDX-License-Identifier: Apache-2.0
"""generate --speculate with heads in a folder, and bench speculate with them."""

import json
import pathlib
import struct

from federation_cases import FederationCase
from tool import MODEL, PROMPT, AuditCase

HIDDEN, DEPTH = 512, 4
SHIPPED = pathlib.Path(MODEL).parent / "fractalmoe-30m-eagle3"


def write_heads(folder, **fields):
    """Medusa heads without a layer's numbers, which guess the newest token again."""
    folder.mkdir()
    fields = {"model_type": "medusa", "num_heads": 3, "hidden_size": HIDDEN, **fields}
    (folder / "config.json").write_text(json.dumps(fields))
    size = HIDDEN * HIDDEN * 2
    header = json.dumps({f"blocks.{head}.layers.0.weight": {
        "dtype": "BF16", "shape": [HIDDEN, HIDDEN], "data_offsets": [head * size, (head + 1) * size]
    } for head in range(3)}).encode()
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + bytes(3 * size))
    return f"medusa={folder}"


class DraftHeads(AuditCase):
    def answer(self, *arguments, tokens=60):
        answer = self.succeed_json("generate", MODEL, "-p", PROMPT, "-n", tokens, "-s", "5",
                                   "--json", "--ignore-end-of-text", *arguments)
        counts = answer.pop("speculation", None)
        for field in ("timings", "tokens_per_second"):
            answer.pop(field, None)
        return answer, counts

    def test_the_answer_is_the_one_without(self):
        heads = write_heads(self.folder / "heads")
        for arguments in (("--temperature", "0"), ("--temperature", "0.9"),
                          ("--n-best", "2", "--repetition-penalty", "1.2")):
            plain, _ = self.answer(*arguments)
            for more in ((), ("--draft-ungated",), ("--draft-max", "2"),
                         ("--draft-threshold", "1"), ("--head-layers", DEPTH)):
                with self.subTest(arguments=arguments, more=more):
                    found, counts = self.answer("--speculate", heads, *arguments, *more)
                    self.assertEqual(found, plain)
                    self.assertIsNone(counts["problem"])
                    self.assertEqual(counts["drafter"], "medusa")
                    self.assertGreater(counts["num_draft_tokens"], 0)

    def test_shipped_heads(self):
        """Answers with the heads of the shipped model are those without, and greedily more than
        0.3 of first guesses are right."""
        heads = f"eagle3={SHIPPED}"
        for arguments in (("--temperature", "0"), ("--temperature", "0.7"),
                          ("--temperature", "1", "--n-best", "2")):
            with self.subTest(arguments=arguments):
                plain, _ = self.answer(*arguments, tokens=200)
                found, counts = self.answer("--speculate", heads, *arguments, "--draft-ungated",
                                            tokens=200)
                self.assertEqual(found, plain)
                self.assertEqual((counts["drafter"], counts["problem"]), ("eagle3", None))
                right = 1 - counts["acceptance_histogram"][0] / counts["num_spec_steps"]
                self.assertGreater(right, 0.3 if arguments[1] == "0" else 0.05)

    def test_threads_change_no_guess(self):
        for arguments in ((), ("--draft-tree", "8x4")):
            counts = [self.answer("--speculate", f"eagle3={SHIPPED}", "--temperature", "0",
                                  "--draft-ungated", "-t", threads, *arguments)[1]
                      for threads in (1, 2, 3)]
            for name in ("num_draft_tokens", "acceptance_histogram"):
                with self.subTest(name, arguments=arguments):
                    self.assertEqual(counts[1][name], counts[0][name])
                    self.assertEqual(counts[2][name], counts[0][name])

    def test_the_log_is_the_one_without(self):
        heads = write_heads(self.folder / "heads")
        self.generate("plain.vtr", "--audit-level", "full", tokens=40)
        self.generate("guessed.vtr", "--audit-level", "full", "--speculate", heads, tokens=40)
        self.assertIn(b"0 different",
                      self.succeed("audit", "diff", "plain.vtr", "guessed.vtr").stdout)
        self.verify("guessed.vtr")

    def test_refusals(self):
        heads = write_heads(self.folder / "heads")
        generate = ("generate", MODEL, "-p", PROMPT, "--speculate")
        for name in ("medusa", "medusa=", "suffix=x", "hydra=x", "="):
            self.fail_with(2, [f"'{name}' is no drafter", "medusa=HEADS"], *generate, name)
        self.fail_with(2, ["--head-layers", "eagle3=HEADS"], *generate, "ngram", "--head-layers",
                       "2,3")
        self.fail_with(2, ["--head-layers"], *generate, heads, "--head-layers", "-1")
        self.fail_with(2, ["option 'layers'", "4"], *generate, heads, "--head-layers", "1,2")
        self.fail_with(2, ["nowhere", "no folder"], *generate, "eagle3=nowhere")
        wide = write_heads(self.folder / "wide", vocab_size=9)
        self.fail_with(2, ["vocab_size", "is 9", "8192"], *generate, wide)
        (self.folder / "pickle").mkdir()
        (self.folder / "pickle" / "medusa_lm_head.pt").write_bytes(b"\x80\x02")
        self.fail_with(2, ["medusa_lm_head.pt", "pickle", "scripts/convert_heads pickle"], *generate,
                       "medusa=pickle")

    def test_bench(self):
        heads = write_heads(self.folder / "heads")
        (self.folder / "prompts.jsonl").write_text(json.dumps(PROMPT) + "\n")
        arguments = ("bench", "speculate", MODEL, "--prompts", "prompts.jsonl", "-n", "30",
                     "--repeat", "1")
        report = self.succeed_json(*arguments, "--candidates", f"ngram,{heads}", "--json",
                                   "--draft-ungated")
        self.assertEqual([one["name"] for one in report["candidates"]], ["ngram", heads])
        self.assertEqual([one["identical"] for one in report["candidates"]], [1, 1])
        self.assertGreater(report["candidates"][1]["counts"]["num_draft_tokens"], 0)
        self.fail_with(2, ["--head-layers", "--candidates"], *arguments, "--head-layers", "2")
        self.fail_with(2, ["'hydra=x'", "eagle3=HEADS"], *arguments, "--candidates", "hydra=x")

    def test_probe_of_layers(self):
        prompts = ["Tell me a story about a dog.", "The bear and the fox went to",
                   "One day Tom found a key.", "What is your name?", "The sun was", PROMPT]
        (self.folder / "prompts.jsonl").write_text("".join(json.dumps(p) + "\n" for p in prompts))
        arguments = ("bench", "speculate", MODEL, "--prompts", "prompts.jsonl", "-n", "80",
                     "--probe-layers", "--candidates")
        heads = f"eagle3={SHIPPED}"
        probes = self.succeed_json(*arguments, heads, "--json")["probes"]
        # The model has four layers: nothing stands one above the last.
        self.assertEqual([one["layers"] for one in probes], [[2, 4], [1, 3]])
        self.assertEqual([one["is_configured"] for one in probes], [True, False])
        self.assertEqual([one["is_best"] for one in probes], [True, False])
        rates = [one["counts"]["mean_acceptance_length"] for one in probes]
        self.assertGreater(rates[0], rates[1])
        out = self.succeed(*arguments, heads).stdout.decode()
        self.assertIn("the heads read 2,4, which is best\n", out)
        out = self.succeed(*arguments, heads, "--head-layers", "1,3").stdout.decode()
        self.assertIn("2,4 is better than 1,3; give --head-layers 2,4\n", out)
        for other in ("suffix", write_heads(self.folder / "heads")):
            self.fail_with(2, ["--probe-layers", other, "eagle3=HEADS"], *arguments, other)
        self.fail_with(2, ["--probe-layers", "--select"], *arguments, heads, "--select")


class FederatedDraftHeads(FederationCase):
    def test_refused(self):
        self.fail_with(2, ["medusa=x", "one model", "ngram"], "federate", self.write(), "-p",
                       PROMPT, "--speculate", "medusa=x")

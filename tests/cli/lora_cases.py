# SPDX-License-Identifier: Apache-2.0
"""`--lora`: adapters of a single model, their logs and their replay."""

import json
import pathlib
import shutil

from tool import MODEL, PROMPT, AuditCase

ADAPTERS = pathlib.Path(__file__).parents[2] / "models" / "fractalmoe-30m-adapters"
OPTIONS = ["-p", PROMPT, "-n", 16, "--temp", 0, "--ignore-end-of-text"]


class Lora(AuditCase):
    def text(self, *more, command="generate"):
        return self.succeed(command, MODEL, *OPTIONS, *more).stdout

    def test_scales_and_sums(self):
        essays, science = ADAPTERS / "essays", ADAPTERS / "science"
        plain = self.text()
        of_essays = self.text("--lora", essays)
        self.assertNotEqual(of_essays, plain)
        self.assertEqual(self.text("--lora", f"{essays}:0"), plain)
        self.assertEqual(self.text("--lora", f"{essays / 'adapter_model.safetensors'}:1.0"), of_essays)
        self.assertEqual(self.text("--lora-scaled", f"{essays}:1"), of_essays)
        both = self.text("--lora", f"{essays}:0.5", "--lora", f"{science}:1.5")
        self.assertNotIn(both, (plain, of_essays))
        # Drafts are checked under the adapters, too.
        self.assertEqual(self.text("--lora", f"{essays}:0.5", "--lora", f"{science}:1.5",
                                   "--speculate", "suffix"), both)

    def test_other_commands(self):
        self.write_ids([5, 6, 7, 8])
        scores = []
        for more in ([], ["--lora", ADAPTERS / "essays"]):
            self.succeed("score", MODEL, "--tokens", "ids.json", "--out", "out.json", *more)
            scores.append((self.folder / "out.json").read_text())
            (self.folder / "out.json").unlink()
        self.assertNotEqual(*scores)
        vectors = [self.succeed("embed", MODEL, "-p", PROMPT, *more).stdout
                   for more in ([], ["--lora", ADAPTERS / "essays"])]
        self.assertNotEqual(*vectors)
        sizes = [self.succeed_json("inspect", MODEL, "--json", *more)["num_parameters"]
                 for more in ([], ["--lora", ADAPTERS / "essays"])]
        self.assertLess(*sizes)

    def test_logs_name_them_and_replay_applies_them(self):
        for name in ("essays", "science"):
            shutil.copytree(ADAPTERS / name, self.folder / name)
        for log in ("run.vtr", "run.json"):
            self.generate(log, "--lora", "essays:0.5", "--lora", "science:-0.25", tokens=12)
            self.assertIn("equal: ", self.replay(log))
        head = json.loads((self.folder / "run.json").read_text())
        self.assertEqual(json.loads(head["runtime"]["options"]["lora"]),
                         [["essays", "0.5"], ["science", "-0.25"]])
        hashes = json.dumps(head)
        for name in ("lora 1 adapter_config.json", "lora 2 adapter_model.safetensors"):
            self.assertIn(name, hashes)
        # Another adapter in its place.
        config = self.folder / "science" / "adapter_config.json"
        fields = json.loads(config.read_text())
        fields["lora_alpha"] *= 2
        config.write_text(json.dumps(fields))
        result = self.run_tool("audit", "replay", "run.vtr")
        self.assertEqual(result.returncode, 2)
        self.assert_one_line(result.stderr, "another model", "lora 2 adapter_config.json")
        shutil.rmtree(self.folder / "science")
        result = self.run_tool("audit", "replay", "run.vtr")
        self.assertNotEqual(result.returncode, 0)
        self.assert_one_line(result.stderr, "science")

    def test_mistakes(self):
        (self.folder / "a.gguf").write_bytes(b"GGUF")
        for given, words in (("gone", ["'gone' is not there"]), ("gone:0.5", ["'gone' is not there"]),
                             (f"{ADAPTERS / 'essays'}:much", ["'much'", "expected a number"]),
                             (f"{ADAPTERS / 'essays'}:1e9", ["scale", "1000"]),
                             ("a.gguf", ["GGUF", "adapter_model.safetensors"])):
            self.fail_with(2, words, "generate", MODEL, "-p", PROMPT, "--lora", given)

# SPDX-License-Identifier: Apache-2.0
"""Names of llama.cpp's and OpenAI's, and what is said where one does nothing or is not there."""

import json
import pathlib
import shutil
import struct

from chat_cases import ChatCase
from federation_cases import FederationCase
from gguf_cases import EXPERTS
from tool import MODEL, ORACLES, PROMPT, SMALL, CliTest, write_byte_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILTIN = json.loads((ROOT / "tests" / "data" / "chat" / "builtin_templates.json").read_text())
RUN = ("generate", MODEL, "-p", PROMPT, "-s", 3, "-n", 6)


class TakenNames(ChatCase):
    def tokens(self, *arguments, notes=1):
        result = self.succeed(*arguments, "--json")
        self.assertEqual(result.stderr.decode().count("\n"), notes, result.stderr)
        return json.loads(result.stdout)["tokens"]

    def test_the_same_under_another_name(self):
        plain = self.tokens(*RUN)
        self.assertEqual(self.tokens(*RUN[:-2], "--max-tokens", 6), plain)
        for more in (["--no-perf"], ["--offline"]):
            self.assertEqual(self.tokens(*RUN, *more), plain, more)
        for more in (["-v"], ["--color", "on"], ["--color"], ["-ncmoe", 4], ["-cmoe"], ["-lv", 3],
                     ["--override-tensor", "exps=CPU"]):
            result = self.succeed(*RUN, *more, "--json")
            self.assertEqual(json.loads(result.stdout)["tokens"], plain, more)
            first, _ = result.stderr.decode().splitlines()
            self.assertIn(f"warning: {more[0]} does nothing here", first)

    def test_logit_bias(self):
        biased = self.tokens(*RUN, "--temp", 0, "--logit-bias", "300=50")
        self.assertEqual(biased, [300] * 6)
        self.assertEqual(self.tokens(*RUN, "--temp", 0, "--logit-bias", "300+50"), biased)
        self.assertEqual(self.tokens(*RUN, "--temp", 0, "-l", "300+51", "-l", "301+50.5"), biased)
        ruled_out = self.tokens(*RUN, "--temp", 0, "--logit-bias", "300+50", "--logit-bias", "301+49",
                                "--ban", "300")
        self.assertEqual(ruled_out, [301] * 6)
        first = self.tokens(*RUN, "--temp", 0)[0]
        self.assertNotIn(first, self.tokens(*RUN, "--temp", 0, "--logit-bias", f"{first}-100"))
        self.assertNotIn(first, self.tokens(*RUN, "--temp", 0, "--logit-bias", f"{first}-inf"))
        self.fail_with(2, ["logit_bias", "ID=V"], *RUN, "--logit-bias", "many+1")

    def test_a_draft_model(self):
        plain = self.tokens(*RUN)
        for name in ("-md", "--model-draft"):
            self.assertEqual(self.tokens(*RUN, name, MODEL, "--draft", 2), plain)
        self.fail_with(2, ["-md b", "expected one of them"], *RUN, "-md", "a", "-md", "b")

    def test_messages_of_the_system(self):
        (self.folder / "s.txt").write_text("Be brief.\n")
        run = ("generate", self.model, "-p", "Hi", "-n", 1, "--json")
        ours = self.succeed_json(*run, "--chat", "--system", "Be brief.")["prompt"]
        for more in (["-sysf", "s.txt"], ["--system-prompt-file", "s.txt"],
                     ["--chat", "--system-file", "s.txt"]):
            self.assertEqual(self.succeed_json(*run, *more)["prompt"], ours)
        self.assertEqual(self.succeed_json(*run, "--chat", "--chat-template-kwargs", '{"tail": "!"}')["prompt"],
                         "[user] Hi\n[assistant] Once upon a time!")
        self.fail_with(2, ["'gone'"], *run, "-sysf", "gone")
        self.fail_with(2, ["--system"], *run, "--chat", "--system", "a", "--system-file", "s.txt")

    def test_built_in_templates(self):
        """Each renders what llama.cpp makes of the same messages, behind the beginning token."""
        config = {"eos_token": "</s>"}
        (self.model / "tokenizer_config.json").write_text(json.dumps(config))
        run = ("generate", self.model, "-n", 1, "--json", "--messages")
        for first in (0, 1):
            (self.folder / f"m{first}.json").write_text(json.dumps(BUILTIN["messages"][first:]))
        for name, prompts in BUILTIN["prompts"].items():
            for first, prompt in enumerate(prompts):
                out = self.succeed_json(*run, f"m{first}.json", "--chat-template", name)
                self.assertEqual(out["prompt"], prompt, name)
        (self.model / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": "<s>"}))
        for name, bos in (("llama3", "<s>"), ("gemma", "<s>"), ("chatml", "")):
            out = self.succeed_json(*run, "m1.json", "--chat-template", name)
            self.assertEqual(out["prompt"], bos + BUILTIN["prompts"][name][1])

    def test_a_template_as_text(self):
        run = ("generate", self.model, "-p", "Hi", "-n", 1, "--json", "--chat", "--chat-template")
        self.assertEqual(self.succeed_json(*run, "<{{ messages[0].content }}>")["prompt"], "<Hi>")
        (self.folder / "chatml").write_text("a file")
        self.assertEqual(self.succeed_json(*run, "chatml")["prompt"], "a file")
        self.fail_with(2, ["'chatmll'", "chatml, command-r"], *run, "chatmll")

    def test_hints(self):
        for more, words in ((["--override-kv", "a=int:1"], ["gguf-set-metadata"]),
                            (["--rope-freq-base", 10000], ["rope_theta", "config.json"]),
                            (["--rope-scaling", "yarn"], ["rope_scaling"]),
                            (["--draft-min", 2], ["--draft-threshold"])):
            self.fail_with(2, [more[0], "llama.cpp", *words], *RUN, *more)
        self.fail_with(2, ["-np", "--parallel of generate"], "score", MODEL, "-np", 2)

    def test_options_that_do_nothing_say_so(self):
        plain = self.tokens(*RUN)
        for more, words in ((["--dry-base", 2], "--dry-base does nothing without --dry-multiplier"),
                            (["--xtc-threshold", 0.2], "--xtc-probability"),
                            (["--mirostat-ent", 4], "--mirostat 2"),
                            (["--repeat-last-n", 64], "--repetition-penalty"),
                            (["--dynatemp-exp", 2], "--dynamic-temperature"),
                            (["-np", 4], "--parallel does nothing without --prompts")):
            result = self.succeed(*RUN, *more, "--json")
            self.assertEqual(json.loads(result.stdout)["tokens"], plain)
            self.assertIn(words, result.stderr.decode().splitlines()[0])
        # A seed where nothing is drawn is no mistake, nor is a filter.
        self.tokens(*RUN, "--temp", 0, "--top-p", 0.9)
        self.tokens(*RUN, "--repeat-last-n", 64, "--repeat-penalty", 1.1)


class BenchTests(CliTest):
    """bench generate with llama-bench's options."""
    RUN = ("bench", "generate", SMALL, "-r", 2)

    def test_lists(self):
        tests = self.succeed_json(*self.RUN, "-p", "8,4", "-n", "3,0", "-pg", "6,2", "-t", "1,2", "-o", "json")
        self.assertEqual([(one["n_threads"], one["n_prompt"], one["n_gen"]) for one in tests],
                         [(threads, *test) for threads in (1, 2) for test in ((8, 0), (4, 0), (0, 3), (6, 2))])
        for one in tests:
            self.assertEqual(len(one["samples_ts"]), 2)
            self.assertAlmostEqual(one["avg_ts"], sum(one["samples_ts"]) / 2)
            speeds = [1e9 * (one["n_prompt"] + one["n_gen"]) / ns for ns in one["samples_ns"]]
            for speed, told in zip(speeds, one["samples_ts"]):
                self.assertAlmostEqual(speed / told, 1, 3)
        lines = self.succeed(*self.RUN, "-p", 8, "-n", 0, "-d", "0,16", "-o", "jsonl").stdout.splitlines()
        self.assertEqual([json.loads(line)["n_depth"] for line in lines], [0, 16])

    def test_a_table(self):
        for more in (["-o", "md"], []):
            table = self.succeed(*self.RUN, "-p", 8, "-p", 4, "-n", 2, "-d", 4, *more).stdout.decode()
            rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
            self.assertEqual(rows[0], ["model", "size", "params", "device", "threads", "test", "t/s"])
            self.assertEqual([row[5] for row in rows[2:]], ["pp8 @ d4", "pp4 @ d4", "tg2 @ d4"])
            for row in rows[2:]:
                self.assertRegex(row[6], r"^\d+\.\d\d ± \d+\.\d\d$")

    def test_one_of_each_is_as_before(self):
        out = self.succeed_json(*self.RUN, "-p", 8, "-n", 4, "--json")
        self.assertEqual((out["prompt_tokens"], out["generated_tokens"], out["repeat"]), (8, 4, 2))

    def test_mistakes(self):
        self.fail_with(2, ["nothing to measure"], *self.RUN, "-p", 0, "-n", 0)
        self.fail_with(2, ["--prompt-generation 5", "64,16"], *self.RUN, "-pg", 5)
        self.fail_with(2, ["--json", "-o"], *self.RUN, "-p", "4,8", "--json")
        self.fail_with(2, ["--batch"], *self.RUN, "-o", "md", "--batch", 2)
        self.fail_with(2, ["positions"], *self.RUN, "-p", "4,90000")


class Messages(FederationCase):
    """Codes and words of failures."""

    def broken_model(self):
        """The shipped model with a weight that is no number."""
        shutil.copytree(MODEL, self.folder / "nan")
        for path in (self.folder / "nan").glob("*.safetensors"):
            data = bytearray(path.read_bytes())
            size = struct.unpack("<Q", data[:8])[0]
            tensor = json.loads(data[8:8 + size]).get("model.norm.weight")
            if tensor:
                self.assertEqual(tensor["dtype"], "BF16")
                at = 8 + size + tensor["data_offsets"][0]
                data[at:at + 2] = b"\xc0\x7f"
                path.chmod(0o644)
                path.write_bytes(data)
        return "nan"

    def test_weights_that_are_no_numbers_have_one_code(self):
        model = self.broken_model()
        ids = self.write_ids([1, 2, 3])
        (self.folder / "p.jsonl").write_text('"a"')
        for command in (["generate", model, "-p", "ab", "-n", 2], ["generate", model, "-p", "ab", "--temp", 0],
                        ["generate", model, "--prompts", "p.jsonl"],
                        ["score", model, "--tokens", ids, "--out", "s.json"],
                        ["bench", "generate", model, "-p", 4, "-n", 2, "-r", 1],
                        ["bench", "generate", model, "-p", 4, "-n", 2, "-r", 1, "-o", "md"],
                        ["bench", "speculate", model, "--prompts", "p.jsonl", "--candidates", "ngram"]):
            self.fail_with(2, ["broken"], *command)

    def test_a_model_in_a_federations_place(self):
        for model in (MODEL, ROOT / "tests" / "data" / "gguf" / "dense.gguf"):
            self.fail_with(2, ["is a model", "vitrine generate", "federation file"], "federate", model, "-p", "a")
        self.fail_with(2, ["is a model"], "federate", "score", MODEL, "text.txt")

    def test_a_layer_that_is_not_there(self):
        self.fail_with(2, ["MTP", "expected"], "generate", MODEL, "-p", "a", "--speculate", "mtp")
        write_byte_model(self.folder / "bytes", ORACLES / "deepseek_v3")
        self.fail_with(2, ["no layer that drafts (MTP), though its config counts one", "another drafter"],
                       "generate", "bytes", "-p", "a", "--speculate", "mtp")

    def test_words_of_the_tool(self):
        """A message names options, no field of C++."""
        write_byte_model(self.folder / "recurrent", ORACLES / "qwen3_next")
        for more, words in ((["--kv-bytes", "1KiB"], "--kv-bytes"),
                            (["--expert-cache", "1KiB"], "--expert-cache"),
                            (["--mmap", "--kernels", "reference"], ""),
                            (["--speculate", "exit=1", "-m", "recurrent"], "exit, hispec")):
            model = [] if "-m" in more else [MODEL]
            result = self.run_tool("generate", *model, "-p", PROMPT, "-n", 2, *more)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assert_one_line(result.stderr, words)
            self.assertNotRegex(result.stderr.decode(), r"Options::|engine option|[a-z]_[a-z]+_?bytes|max_[a-z]+|use step")

    def test_what_did_not_shrink(self):
        out = self.succeed("quantize", EXPERTS, "out", "--scheme", "int8")
        listed = [line for line in out.stdout.decode().splitlines() if line.startswith("not smaller: ")]
        self.assertTrue(listed)
        self.assertRegex(listed[0], r"^not smaller: \S+ \([\d.]+ k?M?B to [\d.]+ k?M?B\)$")
        self.assertIn("warning: out takes", out.stderr.decode())
        smaller = self.succeed("quantize", SMALL, "less", "--scheme", "int8")
        self.assertNotIn(b"not smaller", smaller.stdout)

# SPDX-License-Identifier: Apache-2.0
"""vitrine generate."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

from tool import MODEL, PROMPT, SMALL, TIMEOUT, VITRINE, CliTest, file_size_limit


class Generate(CliTest):
    def test_streams_text(self):
        result = self.succeed("generate", MODEL, "-p", PROMPT, "-n", 12, "--seed", 1)
        self.assertGreater(len(result.stdout), 5)
        self.assert_one_line(result.stderr, "tokens/s", "seed 1", "recorder deferred")
        self.assertEqual(os.listdir(self.folder), [])

    def test_json(self):
        out = self.succeed_json("generate", MODEL, "-p", PROMPT, "-n", 12, "--seed", 1, "--json",
                                "--ignore-end-of-text")
        self.assertEqual(set(out), {"text", "tokens", "reason", "prompt_tokens", "seed", "timings",
                                    "tokens_per_second", "audit"})
        self.assertEqual((len(out["tokens"]), out["reason"], out["seed"], out["audit"]),
                         (12, "length", 1, None))
        ids = self.write_ids(out["tokens"])
        text = self.succeed_json("tokenize", MODEL, "--ids", ids, "--json")["text"]
        self.assertEqual(out["text"], text)
        streamed = self.succeed("generate", MODEL, "-p", PROMPT, "-n", 12, "--seed", 1,
                                "--ignore-end-of-text").stdout.decode()
        self.assertEqual(streamed, text + "\n")

    def test_budget_of_keys_and_values(self):
        """In whole blocks, and the answer ends where they do."""
        arguments = ("generate", MODEL, "-p", PROMPT, "-n", 90, "--seed", 3, "--json",
                     "--ignore-end-of-text")
        tokens = self.succeed_json(*arguments)["tokens"]
        small = self.fail_with(2, ["--kv-bytes is 100", "one block of 64 positions"], *arguments,
                               "--kv-bytes", 100).stderr.decode()
        block = int(re.search(r"at least (\d+)", small)[1])
        for blocks, reason in ((1, "context full"), (2, "length")):
            out = self.succeed_json(*arguments, "--kv-bytes", blocks * block)
            room = min(90, 64 * blocks - out["prompt_tokens"] + 1)
            self.assertEqual((out["tokens"], out["reason"]), (tokens[:room], reason))
        self.assertEqual(self.succeed_json(*arguments, "--kv-bytes", "1GiB")["tokens"], tokens)
        self.fail_with(2, ["--kv-bytes", "expected a size above 0"], *arguments, "--kv-bytes", 0)

    def test_prompt_from_standard_input(self):
        arguments = ("generate", MODEL, "-n", 8, "--temperature", 0, "--json")
        given = self.succeed_json(*arguments, "-p", PROMPT)
        read = self.succeed_json(*arguments, "-p", "-", stdin=PROMPT.encode())
        self.assertEqual(given["tokens"], read["tokens"])

    def test_closed_standard_streams(self):
        """Not the next file that is opened; likewise the output is not lost in silence."""
        self.fail_with(1, ["standard input"], "generate", MODEL, "-p", "-", stdin=None,
                       preexec_fn=lambda: os.close(0))
        self.fail_with(1, ["standard output"], "generate", MODEL, "-p", "x", "-n", 3,
                       preexec_fn=lambda: os.close(1))

    def test_one_seed_one_text(self):
        """Whatever the recorder, the threads and the log."""
        arguments = ("generate", MODEL, "-p", PROMPT, "-n", 24, "--seed", 42, "--json")
        tokens = self.succeed_json(*arguments)["tokens"]
        for more in (["--audit-mode", "none"], ["--audit-mode", "naive"], ["--threads", 1],
                     ["--audit-level", "full"], ["--audit", "log.json"], ["--prompt-logprobs"]):
            self.assertEqual(self.succeed_json(*arguments, *more)["tokens"], tokens, more)
        other = self.succeed_json(*arguments[:-3], "--seed", 43, "--json")
        self.assertNotEqual(other["tokens"], tokens)

    def test_random_seed_is_told(self):
        arguments = ("generate", MODEL, "-p", PROMPT, "-n", 16, "--json")
        first = self.succeed_json(*arguments)
        again = self.succeed_json(*arguments, "--seed", first["seed"])
        self.assertEqual(first["tokens"], again["tokens"])
        self.assertNotEqual(self.succeed_json(*arguments)["seed"], first["seed"])

    def test_temperature_zero_is_greedy(self):
        out = self.succeed_json("generate", MODEL, "-p", PROMPT, "-n", 24, "--temperature", 0,
                                "--ignore-end-of-text", "--json")
        ids = self.succeed_json("tokenize", MODEL, "-p", PROMPT, "--json")["ids"]
        self.succeed("score", MODEL, "--tokens", self.write_ids(ids), "--out", "score.json")
        scored = json.loads((self.folder / "score.json").read_text())
        self.assertEqual(out["tokens"], scored["greedy"])
        self.assertEqual(out["prompt_tokens"], len(ids))

    def test_log(self):
        (self.folder / "log.json").write_text("an older file")
        out = self.succeed_json("generate", MODEL, "-p", PROMPT, "-n", 10, "--audit", "log.json",
                                "--ignore-end-of-text", "--json")
        self.assertEqual(out["audit"], "log.json")
        self.assertEqual(os.listdir(self.folder), ["log.json"])
        log = (self.folder / "log.json").read_text()
        json.loads(log)
        self.assertIn('"length"', log)

    def test_summary(self):
        result = self.succeed("generate", MODEL, "-p", PROMPT, "-n", 40, "--audit", "log.json",
                              "--summary", "--ignore-end-of-text")
        out = result.stdout.decode()
        for word in ("tokens/s", "audit cost", "experts", "surprises", "log         log.json", "█"):
            self.assertIn(word, out)
        self.assertEqual(sum(" p = " in line for line in out.splitlines()), 5, out)

    def test_context_full(self):
        limit = self.succeed_json("inspect", MODEL, "--json")["max_position_embeddings"]
        words = " the" * (2 * limit)
        ids = self.succeed_json("tokenize", MODEL, "-p", "-", "--json", stdin=words.encode())["ids"]
        self.fail_with(2, ["prompt", str(len(ids)), str(limit)], "generate", MODEL, "-p", "-",
                       "-n", 4, stdin=words.encode())
        path = self.write_ids(ids[:limit - 3])
        fitting = self.succeed_json("tokenize", MODEL, "--ids", path, "--json")
        out = self.succeed_json("generate", MODEL, "-p", "-", "-n", 50, "--json",
                                "--ignore-end-of-text", stdin=fitting["text"].encode())
        self.assertEqual(out["reason"], "context full")
        self.assertLess(len(out["tokens"]), 50)

    def test_bad_options(self):
        for option, value, word in (
                ("--temperature", "-1", "temperature"), ("--temperature", "nan", "temperature"),
                ("--top-k", "-3", "top_k"), ("--top-p", "0", "top_p"), ("--top-p", "1.5", "top_p"),
                ("--top-p", "-0.5", "top_p"), ("--min-p", "-0.1", "min_p"),
                ("--min-p", "2", "min_p"),
                ("-n", "0", "-n"), ("-n", "-5", "-n"), ("-n", "many", "-n"),
                ("-n", "99999999999", "-n"), ("-c", "-1", "-c"),
                ("--threads", "0", "--threads"), ("--seed", "-2", "--seed"),
                ("--seed", "x", "--seed"),
                ("--seed", str(2**64), "--seed"),
                ("--device", "abacus", "abacus"), ("--device", "cuda:x", "cuda:x"),
                ("--kernels", "warp", "warp"), ("--audit-mode", "loud", "loud"),
                ("--audit-level", "most", "most"), ("--frobnicate", "1", "frobnicate")):
            with self.subTest(option=option, value=value):
                self.fail_with(2, [word], "generate", MODEL, "-p", PROMPT, option, value)

    def test_bad_audit_path(self):
        generate = ("generate", MODEL, "-p", PROMPT, "-n", 4)
        self.fail_with(2, ["log.xml", ".json"], *generate, "--audit", "log.xml")
        self.fail_with(2, ["log", ".json"], *generate, "--audit", "log")
        # The path is refused before the model is looked at.
        self.fail_with(2, ["log.xml"], "generate", "/nonexistent", "-p", "x", "--audit", "log.xml")
        self.fail_with(2, ["--audit-mode none"], *generate, "--audit", "log.json",
                       "--audit-mode", "none")
        self.fail_with(1, ["missing/log.json"], *generate, "--audit", "missing/log.json")
        (self.folder / "folder.json").mkdir()
        self.fail_with(1, ["folder.json"], *generate, "--audit", "folder.json")

    def test_bad_prompt(self):
        self.fail_with(2, ["prompt is empty"], "generate", MODEL, "-p", "")
        self.fail_with(2, ["prompt is empty"], "generate", MODEL, "-p", "-", stdin=b"")
        self.fail_with(2, ["prompt"], "generate", MODEL)

    def test_bad_model(self):
        self.fail_with(2, ["/nonexistent"], "generate", "/nonexistent", "-p", "x")
        self.fail_with(2, ["'GGUF'", "folder"], "generate", VITRINE, "-p", "x")
        (self.folder / "empty").mkdir()
        result = self.run_tool("generate", "empty", "-p", "x")
        self.assertIn(result.returncode, (1, 2))
        self.assert_one_line(result.stderr, "config.json")
        # A model without tokenizer.json can score but not generate.
        self.fail_with(2, ["tokenizer.json"], "generate", SMALL, "-p", "x")

    def copy_model(self):
        """The model with links for all files, so that one can be replaced."""
        copy = self.folder / "copy"
        copy.mkdir()
        for entry in pathlib.Path(MODEL).iterdir():
            if entry.is_file():
                (copy / entry.name).symlink_to(entry)
        return copy

    def replace(self, copy, name, text):
        (copy / name).unlink()
        (copy / name).write_text(text)

    def test_broken_model_files(self):
        copy = self.copy_model()
        generate = ("generate", "copy", "-p", PROMPT, "-n", 2)
        config = (copy / "config.json").read_text()
        for text, word in ((config[:40], "config.json"),
                           (json.dumps(json.loads(config) | {"model_type": "sphinx"}), "sphinx"),
                           (json.dumps(json.loads(config) | {"hidden_size": 100}), ""),
                           (json.dumps(json.loads(config) | {"vocab_size": 7}), "vocab")):
            self.replace(copy, "config.json", text)
            self.fail_with(2, [word], *generate)
        self.replace(copy, "config.json", config)
        tokenizer = (copy / "tokenizer.json").read_text()
        broken = json.loads(tokenizer)
        broken["model"]["merges"][3] = ["not-a-token", "neither"]
        for text in (tokenizer[:1000], json.dumps(broken)):
            self.replace(copy, "tokenizer.json", text)
            self.fail_with(2, ["tokenizer.json"], *generate)
        self.replace(copy, "tokenizer.json", tokenizer)
        self.succeed(*generate)
        with open(next(pathlib.Path(MODEL).glob("*.safetensors")), "rb") as file:
            head = file.read(5000)
        for data in (head[:5], head[:3000], b"\xff" * 8 + head[8:]):
            (copy / "model.safetensors").unlink()
            (copy / "model.safetensors").write_bytes(data)
            self.fail_with(2, ["model.safetensors"], *generate)

    @unittest.skipUnless(sys.platform == "linux", "elsewhere MPS may exist")
    def test_no_mps_here(self):
        self.fail_with(2, ["mps"], "generate", MODEL, "-p", PROMPT, "--device", "mps")

    @unittest.skipIf(shutil.which("nvidia-smi") or os.path.exists("/dev/nvidia0"), "there is a GPU")
    def test_no_cuda_here(self):
        self.fail_with(2, ["cuda"], "generate", MODEL, "-p", PROMPT, "--device", "cuda")

    @unittest.skipUnless(os.path.exists("/dev/full"), "needs /dev/full")
    def write_to(self, stdout):
        """A run whose output is lost fails, and its log is as whole as that of a cancelled one."""
        result = self.run_tool("generate", MODEL, "-p", PROMPT, "-n", 20, "--audit", "log.json",
                               stdout=stdout)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assert_one_line(result.stderr, "standard output")
        self.assertEqual(os.listdir(self.folder), ["log.json"])
        log = json.loads((self.folder / "log.json").read_text())
        self.assertEqual(log["stop_reason"], "cancelled")

    def test_full_output(self):
        with open("/dev/full", "wb") as full:
            self.write_to(full)

    def test_full_disk(self):
        """The log's disk is full: here a limit on the size of files."""
        (self.folder / "log.json").write_text("an older log")
        self.fail_with(1, ["log.json"], "generate", MODEL, "-p", PROMPT, "-n", 200, "--json",
                       "--ignore-end-of-text", "--audit", "log.json", **file_size_limit(8192))
        self.assertEqual((self.folder / "log.json").read_text(), "an older log")

    def interrupt(self, *more, sent=signal.SIGINT):
        process = self.start_endless(*more)
        process.send_signal(sent)
        out, err = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 128 + sent, err)
        self.assert_one_line(err, "cancelled")
        return out

    def test_ctrl_c(self):
        self.interrupt()
        self.assertEqual(os.listdir(self.folder), [])
        self.interrupt("--summary")
        self.interrupt(sent=signal.SIGTERM)
        self.interrupt(sent=signal.SIGHUP)

    def test_signals_in_a_long_prompt(self):
        """They end it in the middle, however the prompt is answered, and the log is whole."""
        model = self.folder / "long"
        model.mkdir()
        for path in pathlib.Path(MODEL).iterdir():
            if path.is_file() and path.name != "config.json":
                (model / path.name).symlink_to(path)
        config = json.loads((pathlib.Path(MODEL) / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 200000}))
        text = (PROMPT + " a girl who had a red ball. ") * 10000
        (self.folder / "p.txt").write_text(text)
        (self.folder / "p.jsonl").write_text(2 * (json.dumps({"prompt": text}) + "\n"))
        spec = {"federation": 1, "combiner": {"kind": "mixture", "weights": [0.5, 0.5]},
                "specialists": [{"name": name, "model": str(model)} for name in "ab"]}
        (self.folder / "federation.json").write_text(json.dumps(spec))
        for sent, *command in ((signal.SIGINT, "generate", model, "-f", "p.txt"),
                               (signal.SIGTERM, "generate", model, "-f", "p.txt", "--n-best", 2),
                               (signal.SIGTERM, "generate", model, "--prompts", "p.jsonl"),
                               (signal.SIGINT, "federate", "federation.json", "-f", "p.txt")):
            process = subprocess.Popen([VITRINE, *map(str, command), "-n", "2", "--audit", "run.vtr"],
                                       cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.addCleanup(process.kill)
            deadline = time.monotonic() + TIMEOUT
            while not list(self.folder.glob("*run.vtr*")) and process.poll() is None:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.05)
            process.send_signal(sent)
            _, err = process.communicate(timeout=TIMEOUT)
            self.assertEqual(process.returncode, 128 + sent, (command, err))
            if "--n-best" not in command and "--prompts" not in command:
                self.assertRegex(err, rb"cancelled: \d+ of the prompt's \d+ tokens in ")
            self.assertIn(b"complete", self.succeed("audit", "verify", "run.vtr").stdout)
            (self.folder / "run.vtr").unlink()

    def test_ctrl_c_leaves_a_whole_log(self):
        self.interrupt("--audit", "log.json")
        self.assertEqual(os.listdir(self.folder), ["log.json"])
        log = (self.folder / "log.json").read_text()
        json.loads(log)
        self.assertIn('"cancelled"', log)

# SPDX-License-Identifier: Apache-2.0
"""vitrine score, tokenize, inspect, quantize, bench; the tool itself."""

import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import threading

from tool import MODEL, ORACLES, SMALL, TIMEOUT, VITRINE, CliTest, file_size_limit


class Score(CliTest):
    def score(self, model, ids, *more):
        self.succeed("score", model, "--tokens", self.write_ids(ids), "--out", "out.json", *more)
        return json.loads((self.folder / "out.json").read_text())

    def test_agrees_with_the_oracles(self):
        """The first ones were measured with rotary frequencies in bfloat16, like the weights."""
        for folder in sorted(ORACLES.iterdir()):
            oracle = json.loads((folder / "oracle.json").read_text())
            for kernels in ("fused", "reference"):
                with self.subTest(model=folder.name, kernels=kernels):
                    out = self.score(str(folder), oracle["tokens"], "--kernels", kernels,
                                     "--kv-type", "f32", "--rope-frequencies",
                                     "bf16" if oracle["atol"] > 1e-3 else "f32")
                    self.assertEqual(set(out), {"logits_last", "token_logprobs", "greedy"})
                    self.assertEqual(out["greedy"], oracle["greedy"])
                    for key in ("logits_last", "token_logprobs"):
                        self.assertEqual(len(out[key]), len(oracle[key]))
                        worst = max(abs(a - b) for a, b in zip(out[key], oracle[key]))
                        self.assertLessEqual(worst, oracle["atol"], key)

    def test_more_ids_than_one_step_holds(self):
        """The first log-probabilities do not depend on what follows."""
        ids = [(i * 37 + 5) % 250 for i in range(75)]
        whole, part = self.score(SMALL, ids), self.score(SMALL, ids[:33])
        self.assertEqual(whole["token_logprobs"][:32], part["token_logprobs"])
        self.assertEqual(len(whole["token_logprobs"]), 74)
        self.assertEqual(self.score(SMALL, {"ids": ids}), whole)

    def test_one_id(self):
        out = self.score(SMALL, [3])
        self.assertEqual((out["token_logprobs"], len(out["greedy"])), ([], 24))
        self.assertTrue(all(map(math.isfinite, out["logits_last"])))

    def test_context_too_short_for_24(self):
        config = json.loads((pathlib.Path(SMALL) / "config.json").read_text())
        limit = config["max_position_embeddings"]
        path = self.write_ids([1] * (limit - 4))
        result = self.succeed("score", SMALL, "--tokens", path, "--out", "out.json")
        self.assert_one_line(result.stderr, str(limit))
        self.assertEqual(len(json.loads((self.folder / "out.json").read_text())["greedy"]), 5)
        path = self.write_ids([1] * (limit + 1))
        (self.folder / "out.json").unlink()
        self.fail_with(2, [str(limit + 1), str(limit)], "score", SMALL, "--tokens", path, "--out",
                       "out.json")

    def test_bad_ids(self):
        for text, words in (("[1, 2, 256]", ["element 2 is 256", "0 to 255"]), ("[-1]", ["-1"]),
                            ("[1.5]", ["1.5"]), ("[1, null]", ["element 1 is null"]),
                            ('["a"]', ["element 0"]), ("[18446744073709551615]", ["element 0"]),
                            ("[4294967297]", ["element 0"]), ("[[1]]", ["element 0"]),
                            ("[1, 2", ["JSON"]), ("", ["JSON"]), ("{}", ["array"]),
                            ("7", ["array"]),
                            ("[" * 200000 + "]" * 200000, ["nested"]),
                            ('{"ids":' * 200000 + "1" + "}" * 200000, ["nested"]),
                            ("[]", ["at least one"])):
            with self.subTest(ids=text):
                path = self.write_ids(text)
                self.fail_with(2, ["ids.json", *words], "score", SMALL, "--tokens", path,
                               "--out", "o")
        self.fail_with(2, ["gone.json"], "score", SMALL, "--tokens", "gone.json", "--out", "o.json")
        self.fail_with(2, ["tokens"], "score", SMALL, "--out", "o.json")

    def test_unwritable_result(self):
        path = self.write_ids([1, 2])
        self.fail_with(1, ["missing"], "score", SMALL, "--tokens", path,
                       "--out", "missing/out.json")

        # Renaming a file over a pipe or a device would destroy it.
        os.mkfifo(self.folder / "pipe")
        self.fail_with(1, ["pipe", "regular file"], "score", SMALL, "--tokens", path,
                       "--out", "pipe")

    def test_result_through_a_link(self):
        path = self.write_ids([1, 2])
        (self.folder / "real.json").write_text("old")
        (self.folder / "link.json").symlink_to("real.json")
        self.succeed("score", SMALL, "--tokens", path, "--out", "link.json")
        self.assertTrue((self.folder / "link.json").is_symlink())
        self.assertIn("greedy", json.loads((self.folder / "real.json").read_text()))

    def test_full_disk(self):
        path = self.write_ids([1, 2, 3])
        self.fail_with(1, ["out.json"], "score", SMALL, "--tokens", path, "--out", "out.json",
                       **file_size_limit(1024))


class Tokenize(CliTest):
    def test_text_and_back(self):
        text = "Hello, wörld! 你好 🙂 12345\n\ttabs"
        out = self.succeed_json("tokenize", MODEL, "-p", text, "--json")
        self.assertEqual(set(out), {"ids", "pieces"})
        self.assertEqual(len(out["ids"]), len(out["pieces"]))
        ids = self.write_ids(out["ids"])
        back = self.succeed_json("tokenize", MODEL, "--ids", ids, "--json")
        self.assertEqual(back, {"text": text})
        self.assertEqual(self.succeed("tokenize", MODEL, "--ids", ids).stdout.decode(), text + "\n")
        lines = self.succeed("tokenize", MODEL, "-p", "-", stdin=text.encode()).stdout.decode()
        self.assertEqual([int(line.split("\t")[0]) for line in lines.splitlines()], out["ids"])

    def test_invalid_bytes(self):
        out = self.succeed_json("tokenize", MODEL, "-p", "-", "--json", stdin=b"a\xffb\xe4\xbd")
        ids = self.write_ids(out["ids"])
        self.assertEqual(self.succeed_json("tokenize", MODEL, "--ids", ids, "--json")["text"],
                         b"a\xffb\xe4\xbd".decode(errors="replace"))

    def test_empty_text(self):
        self.assertEqual(self.succeed_json("tokenize", MODEL, "-p", "", "--json"),
                         {"ids": [], "pieces": []})

    def test_mistakes(self):
        self.fail_with(2, [], "tokenize", MODEL)
        path = self.write_ids([1])
        self.fail_with(2, [], "tokenize", MODEL, "-p", "x", "--ids", path)
        self.fail_with(2, ["/nonexistent"], "tokenize", "/nonexistent", "-p", "x")
        self.fail_with(2, ["tokenizer.json"], "tokenize", SMALL, "-p", "x")
        path = self.write_ids([10**8])
        self.fail_with(2, ["element 0"], "tokenize", MODEL, "--ids", path)


class Inspect(CliTest):
    def test_context(self):
        """A million positions are a model's own limit, and no memory holds their keys."""
        model = self.folder / "long"
        model.mkdir()
        for path in pathlib.Path(MODEL).iterdir():
            if path.is_file() and path.name != "config.json":
                (model / path.name).symlink_to(path)
        config = json.loads((pathlib.Path(MODEL) / "config.json").read_text())
        config["max_position_embeddings"] = 1 << 30
        (model / "config.json").write_text(json.dumps(config))
        self.assertIn(b"for 32768 positions", self.succeed("inspect", model).stdout)
        self.assertIn(b"for 100 positions", self.succeed("inspect", model, "-c", 100).stdout)
        self.assertIn(b"for 2048 positions", self.succeed("inspect", MODEL).stdout)

    def test_fits(self):
        text = self.succeed("inspect", MODEL, "-c", 100).stdout.decode()
        self.assertRegex(text, r"fits +yes, in the .* free .* longest context that does: \d+")
        text = self.succeed("inspect", MODEL, "-c", 2147483647).stdout.decode()
        self.assertRegex(text, r"context +2048: -c 2147483647 is beyond it, and would be refused")
        self.assertRegex(text, r"fits +no, not in .*--mmap, --expert-cache or --kv-bytes")
        for name in ("max_context", "max_sequences", "kv_bytes"):
            self.assertNotIn(name, text)
        memory = self.succeed_json("inspect", MODEL, "-c", 2147483647, "--json")["memory"]
        machine = memory["machine"]
        self.assertEqual(machine["need_bytes"], sum(memory[name] for name in (
            "weight_bytes", "kv_bytes", "arena_bytes", "table_bytes")))
        self.assertEqual((machine["fits"], machine["most_positions"]), (False, 2048))
        floats = self.succeed("inspect", MODEL, "-c", 2147483647, "--kv-type", "f32", "--mmap")
        self.assertIn(b"see --kv-type f16 or --kv-bytes", floats.stdout)

    def test_json(self):
        out = self.succeed_json("inspect", MODEL, "--plan", "--json")
        config = json.loads((pathlib.Path(MODEL) / "config.json").read_text())
        self.assertEqual(out["num_layers"], config["num_hidden_layers"])
        self.assertEqual(out["hidden_size"], config["hidden_size"])
        self.assertEqual(out["vocab_size"], config["vocab_size"])
        self.assertGreater(out["memory"]["weight_bytes"], 0)
        self.assertGreater(len(out["tensors"]), 10)
        self.assertTrue(all(op["kernel"] for op in out["plan"]))
        self.assertEqual({op["layer"] for op in out["plan"]} - {None},
                         set(range(config["num_hidden_layers"])))
        self.assertEqual(sum(op["weight_bytes"] for op in out["plan"]), out["bytes_per_token"])

    def test_plain(self):
        short = self.succeed("inspect", MODEL).stdout.decode()
        for word in ("architecture", "experts", "memory", "read per token"):
            self.assertIn(word, short)
        long = self.succeed("inspect", MODEL, "--plan", "--tensors").stdout.decode()
        self.assertIn("router", long)
        self.assertGreater(len(long.splitlines()), len(short.splitlines()) + 20)

    def test_reference_path(self):
        out = self.succeed_json("inspect", SMALL, "--kernels", "reference", "--json")
        self.assertFalse(out["invariant"])
        self.assertTrue(self.succeed_json("inspect", SMALL, "--json")["invariant"])


class Quantize(CliTest):
    def test_result_runs(self):
        for scheme in ("int8", "int4", "fp8"):
            out = self.succeed("quantize", SMALL, scheme, "--scheme", scheme, "--group-size", 32)
            self.assertIn("a scale a row" if scheme == "fp8" else "groups of 32", out.stdout.decode())
            manifest = json.loads((self.folder / scheme / "vitrine_manifest.json").read_text())
            self.assertIn(scheme, json.dumps(manifest))
            inspected = self.succeed_json("inspect", scheme, "--json")
            self.assertTrue(any(scheme in entry["scheme"] for entry in inspected["quantization"]))
            self.succeed("score", scheme, "--tokens", self.write_ids([1, 2, 3]), "--out", "o.json")

    def test_calibrations(self):
        (self.folder / "texts").mkdir()
        (self.folder / "texts" / "a.txt").write_text("Write to jane@example.org about the ship. " * 40)
        (self.folder / "b.jsonl").write_text(json.dumps({"prompt": "The ship came home late. " * 30}) + "\n")
        made = self.succeed("calibrate", MODEL, "--text", "texts", "b.jsonl", "--tokens", 300, "--window",
                            64, "--out", "a.vcal", "--licence", "ours").stdout.decode()
        self.assertIn("300 tokens", made)
        self.assertRegex(made, r"replaced: \d+ email")
        manifest = json.loads((self.folder / "a.vcal").read_text())["manifest"]
        self.assertEqual(manifest["licence"], "ours")
        self.assertEqual([source["name"] for source in manifest["sources"]], ["a.txt", "b.jsonl"])
        self.fail_with(2, ["share", "runs of 13"], "calibrate", MODEL, "--text", "texts", "--evaluation",
                       "texts/a.txt", "--out", "b.vcal")
        self.fail_with(2, ["--out", "expected both"], "calibrate", MODEL, "--text", "texts")
        (self.folder / "binary.txt").write_bytes(b"ab\x00cd")
        self.fail_with(2, ["binary.txt", "no text"], "calibrate", MODEL, "--text", "binary.txt", "--out",
                       "b.vcal")
        self.assertFalse((self.folder / "b.vcal").exists())
        made = json.loads((self.folder / "a.vcal").read_text())
        made["tokenizer_sha256"] = "0" * 64
        (self.folder / "other.vcal").write_text(json.dumps(made))
        self.fail_with(2, ["other.vcal", "tokenizer", "expected a calibration of this"], "calibrate", MODEL,
                       "--calibration", "other.vcal", "--imatrix", "a.imatrix")
        # A small model has no tokenizer; its ids are written by hand.
        (self.folder / "s.vcal").write_text(json.dumps({
            "schema": "vitrine-calibration", "schema_version": 1, "tokenizer_sha256": "",
            "manifest": {}, "texts": [[i * 7 % 200 for i in range(j, j + 40)] for j in range(20)]}))
        made = self.succeed("quantize", SMALL, "out", "--scheme", "int4", "--method", "gptq",
                            "--calibration", "s.vcal").stdout.decode()
        self.assertIn("by the calibration", made)
        self.succeed("score", "out", "--tokens", self.write_ids([1, 2, 3]), "--out", "o.json")
        (self.folder / "few.vcal").write_text(json.dumps({
            "schema": "vitrine-calibration", "schema_version": 1, "tokenizer_sha256": "",
            "manifest": {}, "texts": [[1, 2]]}))
        self.fail_with(2, ["reaches", "expected a share"], "quantize", SMALL, "other", "--scheme", "int4",
                       "--method", "gptq", "--calibration", "few.vcal", "--least-reached", "1")
        self.fail_with(2, ["gptq needs a calibration"], "quantize", SMALL, "other", "--scheme", "int4",
                       "--method", "gptq")

    def test_gguf_files(self):
        (self.folder / "s.vcal").write_text(json.dumps({
            "schema": "vitrine-calibration", "schema_version": 1, "tokenizer_sha256": "",
            "manifest": {}, "texts": [list(range(50))]}))
        self.succeed("calibrate", SMALL, "--calibration", "s.vcal", "--imatrix", "s.imatrix")
        self.succeed("calibrate", SMALL, "--calibration", "s.vcal", "--imatrix", "s.dat")
        self.assertEqual((self.folder / "s.imatrix").read_bytes()[:4], b"GGUF")
        self.assertIn(b"blk.0.", (self.folder / "s.dat").read_bytes()[:40])
        for kind, importance in (("bf16", []), ("q8_0", ["--imatrix", "s.imatrix"]),
                                 ("q4_0", ["--imatrix", "s.vcal"]),
                                 ("iq4_nl", ["--imatrix", "s.dat", "--pure"])):
            made = self.succeed("quantize", SMALL, f"{kind}.gguf", "--type", kind, *importance)
            self.assertIn(kind, made.stdout.decode())
            self.succeed("score", f"{kind}.gguf", "--tokens", self.write_ids([1, 2, 3]), "--out", "o.json")
        self.fail_with(2, ["bf16.gguf", "exists"], "quantize", SMALL, "bf16.gguf", "--type", "bf16")
        self.fail_with(2, ["--type is missing"], "quantize", SMALL, "a.gguf")
        self.fail_with(2, ["q9", "expected one of"], "quantize", SMALL, "a.gguf", "--type", "q9")
        self.fail_with(2, ["for .gguf files", "out"], "quantize", SMALL, "out", "--type", "bf16")
        self.fail_with(2, ["for .gguf files", "out"], "quantize", SMALL, "out", "--scheme", "int4", "--pure")

    def test_mistakes(self):
        for more, word in ((["--scheme", "int5"], "int5"),
                           (["--scheme", "int4", "--group-size", "48"], "48"),
                           (["--scheme", "int4", "--group-size", "-32"], "32"), ([], "scheme"),
                           (["--scheme", "int4", "--eval", "gone.txt"], "gone.txt")):
            with self.subTest(more=more):
                self.fail_with(2, [word], "quantize", SMALL, "out", *more)
        self.fail_with(2, ["/nonexistent"], "quantize", "/nonexistent", "out", "--scheme", "int4")
        (self.folder / "taken").mkdir()
        (self.folder / "taken" / "file").write_text("mine")
        self.fail_with(2, ["taken"], "quantize", SMALL, "taken", "--scheme", "int4")
        self.fail_with(2, ["quantized"], "quantize", MODEL, "again", "--scheme", "int8")
        shutil.copytree(SMALL, self.folder / "other")
        config = json.loads((self.folder / "other" / "config.json").read_text())
        for change, word in (({"vocab_size": 257}, "embed_tokens"), ({"model_type": "new"}, "new"),
                             ({"num_hidden_layers": 9}, "missing")):
            (self.folder / "other" / "config.json").write_text(json.dumps({**config, **change}))
            with self.subTest(change=change):
                self.fail_with(2, [word], "quantize", "other", "out", "--scheme", "int4")

    def test_full_disk(self):
        self.fail_with(1, [], "quantize", SMALL, "out", "--scheme", "int8",
                       **file_size_limit(10000))


class BenchAudit(CliTest):
    def test_file(self):
        result = self.succeed("bench", "audit", SMALL, "--tokens", 20, "--trials", 2, "--slices", 8,
                              "--slice-tokens", 5, "--threads", 1, "--out", "bench.json")
        out = json.loads((self.folder / "bench.json").read_text())
        self.assertEqual(list(out), ["model", "device", "threads", "trials", "overhead", "verdict"])
        self.assertEqual((out["device"], out["threads"]), ("cpu", 1))
        self.assertEqual(sorted(trial["mode"] for trial in out["trials"]),
                         ["deferred"] * 2 + ["naive"] * 2 + ["none"] * 2)
        for trial in out["trials"]:
            self.assertEqual(trial["tokens"], 20)
            self.assertGreater(trial["seconds"], 0)
        for mode in ("naive", "deferred"):
            overhead = out["overhead"][mode]
            self.assertGreaterEqual(overhead["slices"], 8)
            self.assertLessEqual(overhead["low"], overhead["median"])
            self.assertLessEqual(overhead["median"], overhead["high"])
            self.assertIn(out["verdict"][mode],
                          ("STRICT", "LENIENT", "FAIL", "CATASTROPHIC", "INCONCLUSIVE"))
            self.assertIn(out["verdict"][mode], result.stdout.decode())

    def test_with_a_sealed_log(self):
        self.succeed("bench", "audit", SMALL, "--tokens", 20, "--trials", 1, "--slices", 4,
                     "--slice-tokens", 20, "--log", "bench.vtr")
        report = json.loads(self.run_tool("audit", "verify", "bench.vtr", "--json").stdout)
        # The tokens of mode none are known to be missing.
        self.assertEqual((report["seal"], report["stop_reason"]), ("complete", "bench"))
        self.assertGreater(report["counts"]["tokens"], 2 * 20 + 2 * 4 * 20)
        self.fail_with(2, ["bench.txt", ".vtr"], "bench", "audit", SMALL, "--log", "bench.txt")

    def test_trial_longer_than_the_context(self):
        self.succeed("bench", "audit", SMALL, "--tokens", 3000, "--trials", 1, "--slices", 2,
                     "--slice-tokens", 5)

    def test_ctrl_c(self):
        process = subprocess.Popen([VITRINE, "bench", "audit", MODEL, "--slices", "100000", "--out",
                                    "bench.json"], cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        timer = threading.Timer(3, process.send_signal, [signal.SIGINT])
        timer.start()
        _, err = process.communicate(timeout=TIMEOUT)
        timer.join()
        self.assertEqual(process.returncode, 130, err)
        self.assert_one_line(err, "cancelled")
        self.assertEqual(os.listdir(self.folder), [])

    def test_mistakes(self):
        self.fail_with(2, ["--slices"], "bench", "audit", SMALL, "--slices", "0")
        self.fail_with(2, ["/nonexistent"], "bench", "audit", "/nonexistent")
        self.fail_with(2, [], "bench")


class BenchGenerate(CliTest):
    KEYS = ["prefill_tps", "decode_tps", "bytes_per_token", "read_bandwidth", "bandwidth_share",
            "load_seconds", "peak_rss"]
    SHORT = ("bench", "generate", SMALL, "-p", "20", "-n", "8", "--repeat", "3")

    def test_json(self):
        found = self.succeed_json(*self.SHORT, "--threads", "1", "--json")
        self.assertEqual(list(found)[:7], self.KEYS)
        for key in self.KEYS:
            self.assertIsInstance(found[key], (int, float), key)
            self.assertGreater(found[key], 0, key)
        facts = self.succeed_json("inspect", SMALL, "--json")
        self.assertEqual(found["bytes_per_token"], facts["bytes_per_token"])
        self.assertAlmostEqual(found["bandwidth_share"] * found["read_bandwidth"],
                               found["decode_tps"] * found["bytes_per_token"],
                               delta=1e-6 * found["read_bandwidth"])
        self.assertLess(found["load_seconds"], found["first_token_seconds"])
        # The model has 100 kB: what is left is the process.
        self.assertGreater(found["peak_rss"], facts["memory"]["weight_bytes"])
        self.assertLess(found["peak_rss"], 1e8)
        for key in ("prefill_tps", "decode_tps"):
            low, high = found[key + "_range"]
            self.assertLessEqual(low, found[key])
            self.assertLessEqual(found[key], high)
        expected = {"prompt_tokens": 20, "generated_tokens": 8, "repeat": 3, "depth": 0, "threads": 1,
                    "audit": "deferred", "step_tokens": 20}
        self.assertEqual({key: found[key] for key in expected}, expected)

    def test_options(self):
        found = self.succeed_json(*self.SHORT, "--audit", "none", "--depth", "9", "--step-tokens",
                                  "7", "--threads", "2", "--json")
        self.assertEqual((found["audit"], found["depth"], found["step_tokens"], found["threads"]),
                         ("none", 9, 7, 2))
        self.assertEqual(found["repeat"], 3)
        one = self.succeed_json("bench", "generate", SMALL, "-p", "1", "-n", "1", "--repeat", "1",
                                "--json")
        self.assertEqual(one["decode_tps_range"], [one["decode_tps"]] * 2)

    def test_batches(self):
        found = self.succeed_json(*self.SHORT, "--batch", "1,3,40", "--depth", "5", "--json")
        self.assertEqual([one["batch"] for one in found["batches"]], [1, 3, 40])
        self.assertEqual(found["step_tokens"], 20)  # of the prompt; 40 sequences step at once
        for one in found["batches"]:
            low, high = one["decode_tps_range"]
            self.assertTrue(0 < low <= one["decode_tps"] <= high, one)
        self.assertNotIn("batches", self.succeed_json(*self.SHORT, "--json"))
        text = self.succeed(*self.SHORT, "--batch", "2").stdout.decode()
        self.assertIn("(16 tokens; median of 3", next(line for line in text.splitlines()
                                                      if line.startswith("decode 2x ")))
        self.fail_with(2, ["--batch", "0"], *self.SHORT, "--batch", "2,0")

    def test_table(self):
        text = self.succeed(*self.SHORT).stdout.decode()
        for words in ("prefill", "decode", "tokens/s", "a token", "GB/s", "first token", "at most"):
            self.assertIn(words, text)

    def test_reference_path(self):
        """Its weights are another library's: nothing is said of the memory's speed."""
        found = self.succeed_json(*self.SHORT, "--kernels", "reference", "--json")
        self.assertEqual((found["read_bandwidth"], found["bandwidth_share"]), (None, None))
        self.assertGreater(found["decode_tps"], 0)
        self.assertNotIn("GB/s",
                         self.succeed(*self.SHORT, "--kernels", "reference").stdout.decode())

    def test_ctrl_c(self):
        process = subprocess.Popen([VITRINE, "bench", "generate", MODEL, "--repeat", "10000"],
                                   cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        timer = threading.Timer(3, process.send_signal, [signal.SIGINT])
        timer.start()
        out, err = process.communicate(timeout=TIMEOUT)
        timer.join()
        self.assertEqual((process.returncode, out), (130, b""), err)
        self.assert_one_line(err, "cancelled")

    def test_mistakes(self):
        bench = ("bench", "generate", SMALL)
        for option in ("-p", "-n", "--repeat", "--threads", "--step-tokens"):
            for value in ("0", "-1", "many"):
                if (option, value) in (("-p", "0"), ("-n", "0")):
                    continue  # as in llama-bench: without that test
                self.fail_with(2, [value], *bench, option, value)
        self.fail_with(2, ["--depth"], *bench, "--depth", "-1")
        self.fail_with(2, ["naive"], *bench, "--audit", "naive")
        self.fail_with(2, ["/nonexistent"], "bench", "generate", "/nonexistent")
        self.fail_with(2, ["model"], "bench", "generate")
        limit = self.succeed_json("inspect", SMALL, "--json")["max_position_embeddings"]
        self.fail_with(2, [str(limit + 1), str(limit), "-p"], *bench, "-p", str(limit + 1))
        self.fail_with(2, [str(limit + 1), "--depth"], *bench, "-n", "1", "-p", "1", "--depth",
                       str(limit))


class Tool(CliTest):
    def test_help(self):
        self.assertIn(b"generate", self.succeed("--help").stdout)
        for command in ("generate", "score", "tokenize", "inspect", "quantize", "bench", "audit"):
            self.assertIn(b"--help", self.succeed(command, "--help").stdout)

    def test_mistakes(self):
        self.fail_with(2, [])
        self.fail_with(2, ["conjure"], "conjure")

# SPDX-License-Identifier: Apache-2.0
"""Every command with a .gguf file in place of a folder."""

import hashlib
import json
import os
import pathlib
import struct
import time

from tool import ORACLES, CliTest

FILES = pathlib.Path(ORACLES).parent / "gguf"
DENSE = FILES / "dense.gguf"  # llama, F16, SentencePiece
EXPERTS = FILES / "experts.gguf"  # qwen3moe, Q8_0, Q4_0 and Q5_1, byte-level
SPLIT = FILES / "split-00001-of-00002.gguf"


class Gguf(CliTest):
    def test_inspect(self):
        found = self.succeed_json("inspect", EXPERTS, "--json")
        self.assertEqual(found["architecture"], "qwen3_moe")
        self.assertEqual((found["num_experts"], found["vocab_size"]), (2, 40))
        self.assertEqual(found["eos_token_ids"], [5])
        types = {tensor["name"]: tensor["dtype"] for tensor in found["tensors"]}
        self.assertEqual(types["model.layers.0.mlp.experts.1.up_proj.weight"], "Q4_0")
        self.assertEqual(types["model.layers.0.input_layernorm.weight"], "F32")
        self.assertIn({"scheme": "Q4_0", "modules": 4}, found["quantization"])
        # 7,456 elements of float16 (the head is the whole embedding, the embedding one row), 96 norms.
        self.assertEqual(self.succeed_json("inspect", DENSE, "--json")["bytes_per_token"],
                         7456 * 2 + 96 * 4)
        text = self.succeed("inspect", DENSE, "--plan", "--tensors").stdout.decode()
        for words in ("llama", "linear_f16", "model.layers.0.self_attn.q_proj.weight"):
            self.assertIn(words, text)

    def test_tokenize(self):
        self.assertEqual(self.succeed_json("tokenize", DENSE, "-p", "ab a\n", "--json"),
                         {"ids": [1, 8, 7, 8, 3], "pieces": ["<s>", "▁a", "b", "▁a", "<0x0A>"]})
        self.assertEqual(self.succeed_json("tokenize", EXPERTS, "-p", "ab a<|end|>", "--json")["ids"],
                         [3, 4, 5])
        path = self.write_ids([1, 8, 7, 8, 3])
        self.assertEqual(self.succeed_json("tokenize", DENSE, "--ids", path, "--json"),
                         {"text": "ab a\n"})

    def test_score_generate_and_replay(self):
        for file in (DENSE, EXPERTS, SPLIT):
            with self.subTest(file=file.name):
                ids = self.write_ids([1, 2, 3, 4])
                self.succeed("score", file, "--tokens", ids, "--out", "out.json")
                out = json.loads((self.folder / "out.json").read_text())
                self.assertEqual((len(out["logits_last"]), len(out["greedy"])), (40, 24))
                log = f"{file.stem}.vtr"
                found = self.succeed_json("generate", file, "-p", "ab a", "-n", 12, "--seed", 3,
                                          "--ignore-end-of-text", "--audit", log, "--json")
                self.assertEqual(len(found["tokens"]), 12)
                self.assertIn("ab", self.succeed("audit", "show", log).stdout.decode())
                self.succeed("audit", "replay", log)
        self.assertNotEqual(self.run_tool("audit", "replay", "dense.vtr", "--model",
                                          EXPERTS).returncode, 0)
        # One file is the same model under another name.
        os.symlink(DENSE, self.folder / "renamed.gguf")
        self.succeed("audit", "replay", "dense.vtr", "--model", "renamed.gguf")
        self.assertIn("every file has the hash", self.succeed(
            "audit", "verify", "dense.vtr", "--model", "renamed.gguf").stdout.decode())
        os.symlink(EXPERTS, self.folder / "other.gguf")
        self.fail_with(2, ["another than the log's"], "audit", "show", "dense.vtr", "--model",
                       "other.gguf")

    def test_expert_cache_has_a_size(self):
        ids = self.write_ids([1, 2, 3])
        score = ("score", EXPERTS, "--tokens", ids, "--out", "out.json", "--expert-cache")
        for size in ("0", "0GiB", "-5", "-1GiB", "GiB"):
            with self.subTest(size=size):
                self.fail_with(2, ["--expert-cache", size, "expected a size above 0"], *score[:-1],
                               f"--expert-cache={size}")
        self.succeed(*score, "1MiB")

    def test_quantize(self):
        self.succeed("quantize", EXPERTS, "folder", "--scheme", "int8")
        self.assertEqual({path.name for path in (self.folder / "folder").iterdir()},
                         {"config.json", "generation_config.json", "model.safetensors",
                          "tokenizer.json", "tokenizer_config.json", "vitrine_manifest.json"})
        for command in (("tokenize", "-p", "ab a<|end|>", "--json"), ("inspect", "--json")):
            found = [self.succeed_json(command[0], model, *command[1:])
                     for model in (EXPERTS, "folder")]
            for key in ("ids", "num_experts", "eos_token_ids", "max_position_embeddings"):
                self.assertEqual(found[0].get(key), found[1].get(key))

    def test_sampling_of_the_metadata(self):
        """general.sampling's values are the defaults, and what is printed names where they stand."""
        whole = DENSE.read_bytes()
        entry = lambda key, kind, value: struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value
        entries = (entry(b"general.sampling.temp", 6, struct.pack("<f", 0.5)) +
                   entry(b"general.sampling.top_k", 5, struct.pack("<i", 7)))
        key = b"general.filler"
        size = -(len(entries) + len(entry(key, 8, bytes(8)))) % 32  # tensors stay where they are aligned
        entries += entry(key, 8, struct.pack("<Q", size) + b"x" * size)
        count = struct.unpack("<Q", whole[16:24])[0] + 3
        (self.folder / "own.gguf").write_bytes(whole[:16] + struct.pack("<Q", count) + entries + whole[24:])
        result = self.succeed("generate", "own.gguf", "-p", "a", "-n", 2, "--explain")
        self.assertIn("sampling as the model's metadata (general.sampling) says: --temperature 0.5, --top-k 7\n",
                      result.stderr.decode())
        for words in ("temperature (0.5)", "top_k (k = 7)", "top_p (p = 0.95)"):
            self.assertIn(words, result.stderr.decode())

    def test_strict(self):  # what has no kernel: tests/model/gguf_oracle_test.py
        ids = self.write_ids([1, 2])
        for file in (EXPERTS, DENSE):
            scored = self.succeed("score", file, "--tokens", ids, "--out", "out.json", "--strict")
            self.assertEqual(scored.stderr, b"")
            (self.folder / "out.json").unlink()

    def test_bad_files(self):
        generate = lambda path: ("generate", path, "-p", "a")
        whole = DENSE.read_bytes()
        for size in (3, 20, 900, len(whole) - 2000):
            (self.folder / "cut.gguf").write_bytes(whole[:size])
            self.fail_with(2, ["cut.gguf"], *generate("cut.gguf"))
        (self.folder / "cut.gguf").write_text("no model")
        self.fail_with(2, ["cut.gguf", "'GGUF'"], *generate("cut.gguf"))
        (self.folder / "a-00001-of-00002.gguf").write_bytes(SPLIT.read_bytes())
        self.fail_with(2, ["a-00002-of-00002.gguf"], *generate("a-00001-of-00002.gguf"))
        self.fail_with(2, ["first"], *generate(FILES / "split-00002-of-00002.gguf"))
        # Without its last tensors a model opens and cannot run.
        cut = bytearray(whole)
        at = cut.find(b"blk.0.ffn_down.weight")
        cut[at:at + 21] = b"blk.0.attn_q_norm.bia"
        (self.folder / "cut.gguf").write_bytes(cut)
        self.fail_with(2, ["blk.0.attn_q_norm.bia"], *generate("cut.gguf"))


class LargeFile(CliTest):
    """A file of more than a gigabyte: its log names its hash, which costs its reading once."""

    def setUp(self):
        super().setUp()
        self.file = self.folder / "large.gguf"
        self.cache = self.folder / "cache"
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(self.cache)}
        # Behind its tensors a hole.
        self.file.write_bytes(DENSE.read_bytes())
        os.truncate(self.file, (1 << 30) + 4096)
        self.assertGreater(self.file.stat().st_size, 1 << 30)
        self.settle()

    def settle(self):
        """Until a later change of the file cannot have the same time."""
        while time.time() - self.file.stat().st_ctime < 4:
            time.sleep(0.1)

    def log(self):
        """The hashes in a new log, and whether the file was read for them."""
        run = self.succeed("generate", self.file, "-p", "ab", "-n", 1, "--mmap", "--audit", "run.json",
                           env=self.environment)
        return (json.loads((self.folder / "run.json").read_text())["model"]["sha256"],
                b"for its SHA-256" in run.stderr)

    def hash(self):
        with open(self.file, "rb") as file:
            return {"large.gguf": hashlib.file_digest(file, "sha256").hexdigest()}

    def test_hash(self):
        expected = self.hash()
        self.assertEqual(self.log(), (expected, True))
        self.assertEqual(self.log(), (expected, False))
        self.succeed("audit", "verify", "run.json", "--model", self.file)
        self.succeed("audit", "replay", "run.json", "--mmap", env=self.environment)
        # An entry that says nothing is made again.
        (entry,) = (self.cache / "vitrine" / "sha256").iterdir()
        kept = entry.read_text()
        entry.write_text(kept[:90])
        self.assertEqual(self.log(), (expected, True))
        self.assertEqual(entry.read_text(), kept)
        # Another byte, with the old size and the old time of the content's change.
        times = self.file.stat()
        with open(self.file, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\1")
        os.utime(self.file, ns=(times.st_atime_ns, times.st_mtime_ns))
        verified = self.run_tool("audit", "verify", "run.json", "--model", self.file)
        self.assertEqual(verified.returncode, 1)
        self.assertIn(b"MODEL DOES NOT FIT", verified.stdout)
        self.assertIn(expected["large.gguf"][:16].encode(), verified.stdout)
        replayed = self.run_tool("audit", "replay", "run.json", "--mmap", "--model", self.file,
                                 env=self.environment)
        self.assertEqual(replayed.returncode, 2)
        self.assertIn(b"another model than the log's (large.gguf has SHA-256", replayed.stderr)
        found, _ = self.log()  # replay may have kept it
        self.assertEqual(found, self.hash())
        self.assertNotEqual(found, expected)

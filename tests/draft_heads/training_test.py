# SPDX-License-Identifier: Apache-2.0
"""What models/train trains is what heads compute when they guess: its logits equal those of the
plain forms that the drafters are tested against.

Ends with 77 (skipped) where the oracle packages are not installed.
"""

import pathlib
import sys
import types
import unittest

try:
    import torch
    from head_forms import EagleForm, medusa_guesses
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "models" / "train"))
import eagle  # noqa: E402
import examples  # noqa: E402
import medusa  # noqa: E402
import target as targets  # noqa: E402
import train  # noqa: E402

HIDDEN, WORDS, DEPTH, STEPS, MASK = 42, 101, 5, 4, 9
SIZES = {"model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN, "vocab_size": WORDS,
         "intermediate_size": 52, "num_hidden_layers": 1, "num_attention_heads": 6,
         "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
         "max_position_embeddings": 512, "tie_word_embeddings": False}
TOLERANCE = 1e-4

torch.set_num_threads(1)


def small_target(seed=1):
    """A model with random weights, as Target holds it."""
    torch.manual_seed(seed)
    own = targets.Target.__new__(targets.Target)
    config = transformers.LlamaConfig(**{**SIZES, "num_hidden_layers": DEPTH})
    own.read(transformers.LlamaForCausalLM(config).eval())
    with torch.no_grad():
        for parameter in own.model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return own


def jitter(heads):
    """Random weights of bfloat16, which are stored as they are."""
    with torch.no_grad():
        for parameter in heads.parameters():
            noise = 0.3 * torch.randn_like(parameter) * parameter.shape[-1] ** -0.5
            parameter.copy_((parameter + noise).bfloat16().float())
    return heads


class Training(unittest.TestCase):
    def setUp(self):
        self.target = small_target()
        self.vocabulary = torch.randperm(WORDS)[:37].sort().values

    def batch(self, tokens, features):
        return {"ids": torch.tensor([tokens]), "features": features[None]}

    def steps_of(self, heads, form_guesses, guesses=STEPS):
        """Compares the row of each step with what the plain form guesses there."""
        features = torch.randn(40, 2 * HIDDEN)
        for length in (2, 3, 17, 33):
            tokens = torch.randint(WORDS, (length,)).tolist()
            found = form_guesses(tokens, features[:length - 1])
            text = tokens + [token for token, _ in found] + [0]
            # Features behind the row are there in training, and must not be read.
            batch = self.batch(text, features[:len(text)])
            with torch.no_grad():
                logits = list(heads(batch, guesses))
            for step, (_, expected) in enumerate(found):
                torch.testing.assert_close(logits[step][0, length - 2], expected, atol=TOLERANCE,
                                           rtol=0)

    def form(self, heads):
        tensors = heads.tensors()
        return EagleForm(SIZES, tensors, self.target.embedding, {})

    def test_eagle3_follows_its_own_outputs(self):
        heads = jitter(eagle.Eagle(self.target, SIZES, [1, 4], self.vocabulary))
        form = self.form(heads)
        self.steps_of(heads, lambda tokens, features: form.chain(tokens, features, STEPS))

    def test_peagle_guesses_behind_masks(self):
        heads = jitter(eagle.Eagle(self.target, SIZES, [1, 4], self.vocabulary, MASK))
        tensors = heads.tensors()
        tensors["mask_hidden"] = tensors["mask_hidden"].float()
        form = EagleForm(SIZES, tensors, self.target.embedding, {})
        self.steps_of(heads,
                      lambda tokens, features: form.parallel(tokens, features, STEPS, MASK))

    def test_heads_go_on_from_a_folder(self):
        for mask in (None, MASK):
            first = jitter(eagle.Eagle(self.target, SIZES, [1, 4], self.vocabulary, mask))
            again = eagle.Eagle(self.target, SIZES, [1, 4], self.vocabulary, mask)
            again.begin_as(first.tensors())
            for name, tensor in first.tensors().items():
                self.assertTrue(torch.equal(tensor, again.tensors()[name]), name)

    def test_medusa(self):
        heads = jitter(medusa.Medusa(self.target, 3, self.vocabulary))
        stored = {name: tensor.float() for name, tensor in heads.tensors().items()}
        read = torch.randn(9, HIDDEN)
        with torch.no_grad():
            found = list(heads(self.batch([0] * 9, read), 3))
        norm = {"model.norm.weight": self.target.norm.weight.detach()}
        for row in range(9 - 1 - 3):
            expected = medusa_guesses(stored, norm, read[row], 3, self.vocabulary)
            for step, (_, logits) in enumerate(expected):
                torch.testing.assert_close(found[step][0, row], logits, atol=TOLERANCE, rtol=0)

    def test_examples_are_what_the_model_thinks(self):
        texts = [(torch.randint(WORDS, (length,)).tolist(), 1) for length in (19, 12, 11)]
        own = examples.Examples(self.target, texts, [0, 3], self.vocabulary, 2, 1)
        self.assertEqual(own.tokens, 42)
        self.assertEqual(sorted(batch["ids"].shape for batch in own.batches), [(1, 11), (2, 19)])
        batch = max(own.batches, key=lambda found: found["ids"].shape[1])
        for row, (ids, _) in enumerate(texts[:2]):
            with torch.no_grad():
                alone = self.target.model(torch.tensor([ids]), output_hidden_states=True)
            read = torch.cat([alone.hidden_states[0], alone.hidden_states[3]], -1)[0]
            torch.testing.assert_close(batch["features"][row, :len(ids)], read.bfloat16())
            thought = alone.logits[0].softmax(-1)
            known = thought[:, self.vocabulary]
            kept, places = known.topk(examples.KEPT, -1)
            torch.testing.assert_close(batch["probabilities"][row, :len(ids)], kept)
            self.assertTrue(torch.equal(batch["places"][row, :len(ids)], places))
            self.assertTrue(torch.equal(batch["is_first"][row, :len(ids)],
                                        torch.isin(thought.argmax(-1), self.vocabulary)))
            self.assertEqual(int(batch["is_text"][row].sum()), len(ids))

    def test_losses_are_of_the_token_that_comes(self):
        """Heads that say what the model said have its entropy as their loss, and agree."""
        texts = [(torch.randint(WORDS, (length,)).tolist(), 0) for length in (9, 6)]
        everything = torch.arange(WORDS)
        own = examples.Examples(self.target, texts, [1, 2], everything, 2, 1).batches[0]
        with torch.no_grad():
            logits = self.target.model(own["ids"]).logits

        def heads(batch, steps):
            rows = batch["ids"].shape[1] - 1 - steps
            for step in range(steps):
                yield logits[:, 1 + step:1 + step + rows]
        for loss, agreed in train.losses(heads, own, 3):
            self.assertEqual(float(agreed), 1.0)
            self.assertLess(float(loss), torch.tensor(float(WORDS)).log())
        shifted = types.SimpleNamespace(heads=lambda batch, steps: (
            part.roll(1, 1) for part in heads(batch, steps)))
        for _, agreed in train.losses(shifted.heads, own, 3):
            self.assertLess(float(agreed), 0.9)

    def test_vocabulary_is_what_the_model_wrote_most(self):
        chosen, share = examples.choose_vocabulary([([1, 1, 1, 5, 7, 5], 3), ([7, 7, 2], 1)], 2)
        self.assertEqual(chosen.tolist(), [5, 7])
        self.assertAlmostEqual(share, 4 / 5)

    def test_packed_weights(self):
        for bits in (4, 8):
            values = torch.randint(-2 ** (bits - 1), 2 ** (bits - 1), (3, 64))
            scales = torch.rand(3, 2)
            words = torch.zeros(3, 64 * bits // 32, dtype=torch.int64)
            for column in range(64):
                place = column * bits
                words[:, place // 32] |= (values[:, column] + 2 ** (bits - 1)) << (place % 32)
            words = (words - (words >> 31 << 32)).int()
            expected = values * scales.repeat_interleave(32, 1)
            self.assertTrue(torch.equal(targets.unpack(words, scales, (3, 64)), expected))


if __name__ == "__main__":
    unittest.main()

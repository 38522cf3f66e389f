# SPDX-License-Identifier: Apache-2.0
"""What heads learn from: of each token of a text the model's features, and what it thought came next."""

import collections
import json
import time

import torch

KEPT = 32  # probabilities of a position: the likeliest of the draft vocabulary


def read_texts(path):
    """[(ids, how many are the prompt's)], longest first."""
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return sorted(((line["ids"], line["prompt"]) for line in lines), key=lambda text: -len(text[0]))


def choose_vocabulary(texts, size):
    """The tokens that the model wrote most often, ascending, and the share of its text that they are."""
    counts = collections.Counter(token for ids, prompt in texts for token in ids[prompt:])
    chosen = [token for token, _ in counts.most_common(size)]
    share = sum(counts[token] for token in chosen) / counts.total()
    return torch.tensor(sorted(chosen)), share


class Examples:
    """Texts in batches of like lengths, which follow one another at random."""

    def __init__(self, target, texts, layers, vocabulary, texts_a_batch, minutes):
        """Stops to read texts after so many minutes."""
        self.batches, self.tokens = [], 0
        end = time.monotonic() + 60 * minutes
        starts = torch.arange(0, len(texts), texts_a_batch)
        for start in starts[torch.randperm(len(starts))].tolist():
            self.add(target, texts[start:start + texts_a_batch], layers, vocabulary)
            if time.monotonic() > end:
                break

    def add(self, target, texts, layers, vocabulary):
        longest = len(texts[0][0])
        ids = torch.zeros(len(texts), longest, dtype=torch.long)
        is_text = torch.zeros(len(texts), longest, dtype=torch.bool)
        for row, (text, _) in enumerate(texts):
            ids[row, :len(text)] = torch.tensor(text)
            is_text[row, :len(text)] = True
        depth = len(target.model.model.layers)
        read = target.features(ids, [*layers, depth])
        width = target.config.hidden_size
        probabilities, places, is_first = [], [], []
        for last in read[..., -width:]:
            thought = target.logits(last, slice(None)).softmax(-1)
            likeliest = thought[:, vocabulary].topk(min(KEPT, len(vocabulary)), -1)
            probabilities.append(likeliest.values)
            places.append(likeliest.indices)
            is_first.append(likeliest.values[:, 0] == thought.max(-1).values)
        self.batches.append({
            "ids": ids, "is_text": is_text, "features": read[..., :-width].bfloat16(),
            "probabilities": torch.stack(probabilities), "places": torch.stack(places),
            "is_first": torch.stack(is_first)})
        self.tokens += int(is_text.sum())

    def __iter__(self):
        while True:
            for index in torch.randperm(len(self.batches)).tolist():
                yield self.batches[index]

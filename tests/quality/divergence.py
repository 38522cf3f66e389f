# SPDX-License-Identifier: Apache-2.0
"""Writes tests/quality/divergence.json: what numpy says of a model and its base, for
perplexity_test.cc. The rows are those of llama.cpp's tools/perplexity, in float32.

    python3 tests/quality/divergence.py > tests/quality/divergence.json
"""

import json
import sys

import numpy

TOKENS, VOCABULARY = 60, 13


def store(row):
    """A row of llama-perplexity's file: scale, least log-probability, whole numbers."""
    row = row.astype(numpy.float32)
    largest = row.max()
    floor = max(row.min(), numpy.float32(largest - 16))
    log_sum = numpy.float32(numpy.log(numpy.exp(row - largest).astype(numpy.float64).sum()))
    scale = numpy.float32((largest - floor) / numpy.float32(65535))
    values = numpy.rint(numpy.float32(1) / scale * (row - floor)) if scale else 0 * row
    return scale, numpy.float32(floor - largest - log_sum), numpy.where(row > floor, values, 0)


def log_softmax(rows):
    rows = rows.astype(numpy.float64)
    shifted = rows - rows.max(axis=1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(axis=1, keepdims=True))


def mean(values):
    """A mean and its standard error, as llama-perplexity has it."""
    return [float(values.mean()), float(values.std() / numpy.sqrt(len(values) - 1))]


def main():
    noise = numpy.random.default_rng(5)
    base_logits = (4 * noise.standard_normal((TOKENS, VOCABULARY))).astype(numpy.float32)
    base_logits[7] = 2.5  # all alike: the scale is 0
    base_logits[8, 3] = 40  # the others are cut off 16 below
    logits = (base_logits + noise.standard_normal(base_logits.shape)).astype(numpy.float32)
    tokens = noise.integers(0, VOCABULARY, TOKENS)
    stored = [store(row) for row in base_logits]
    base = numpy.array([numpy.float32(scale) * values.astype(numpy.float32) + least
                        for scale, least, values in stored], numpy.float32).astype(numpy.float64)
    model = log_softmax(logits)
    own, other = model[numpy.arange(TOKENS), tokens], base[numpy.arange(TOKENS), tokens]
    kl = numpy.where(base > -16, numpy.exp(base) * (base - model), 0).sum(axis=1)
    delta = numpy.exp(own) - numpy.exp(other)
    same = (logits.argmax(axis=1) == base.argmax(axis=1)).astype(float)
    difference = mean(other - own)
    ratio = numpy.exp(difference[0])
    square = mean(delta**2)
    root = numpy.sqrt(square[0])
    perplexity = [numpy.exp(mean(-values)[0]) * numpy.array([1, mean(-values)[1]])
                  for values in (own, other)]
    # By the delta method: perplexities weigh each token's loss.
    weighed = perplexity[0][0] * -own - perplexity[1][0] * -other
    json.dump({
        "logits": logits.tolist(), "base_logits": base_logits.tolist(), "tokens": tokens.tolist(),
        "rows": [[float(scale), float(least), values.astype(int).tolist()]
                 for scale, least, values in stored],
        "kls": numpy.sort(kl).tolist(), "delta_ps": numpy.sort(delta).tolist(),
        "perplexity": perplexity[0].tolist(), "base_perplexity": perplexity[1].tolist(),
        "correlation": float(numpy.corrcoef(own, other)[0, 1]), "log_ratio": difference,
        "ratio": [float(ratio), float(ratio * difference[1])],
        "difference": [float(perplexity[0][0] - perplexity[1][0]), mean(weighed)[1]],
        "kl": mean(kl), "delta_p": mean(delta),
        "rms_delta_p": [float(root), float(0.5 / root * square[1])],
        "same_best": mean(same)}, sys.stdout, allow_nan=False)
    print()


main()

# SPDX-License-Identifier: Apache-2.0
"""Compares every sampler stage with an independent definition on 1,000 random logit vectors: with
transformers' logits processors where there is one, else with numpy from the paper.

usage: stage_oracle_test.py SAMPLE_LINES
"""

import math
import random
import struct
import subprocess
import sys

import numpy as np
import torch
from transformers.generation import logits_process as processors

from oracle_test import philox4x32

VECTORS = 1000
# Where a sum or a threshold is nearer to its limit than this, another order of summation may fall
# on the other side; such vectors are counted and must stay rare.
BORDERLINE = 1e-9
NONE = -np.inf


def random_vector(generator):
    count = generator.choice([2, 3, 7, 50, 257])
    kind = generator.choice(["normal", "ties", "flat", "infs", "peaked", "bad"])
    logits = np.array([generator.gauss(0, 3) for _ in range(count)], dtype=np.float32)
    if kind == "ties":
        logits = np.round(logits)
    elif kind == "flat":
        logits[:] = generator.choice([0.0, -0.0, 4.5])
    elif kind == "infs":
        ruled_out = np.array([generator.random() < 0.4 for _ in range(count)])
        ruled_out[generator.randrange(count)] = False
        logits[ruled_out] = -np.inf
    elif kind == "peaked":
        logits[generator.randrange(count)] += np.float32(30)
    elif kind == "bad" and generator.random() < 0.4:
        logits[generator.randrange(count)] = generator.choice([np.nan, np.inf, -np.nan])
    return logits


def random_history(generator, count):
    """With repetitions."""
    alphabet = [generator.randrange(count) for _ in range(4)]
    return [generator.choice(alphabet) for _ in range(generator.choice([5, 20, 60]))]


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def run_processor(processor, logits, history=()):
    scores = processor(torch.tensor([list(history)], dtype=torch.long), torch.tensor(logits)[None])
    return scores[0].numpy()


def keep_best(logits, kept, key=None):
    """Keeps the first by key and id of a set that transformers keeps at random among ties."""
    count = int(np.isfinite(kept).sum())
    order = np.lexsort((np.arange(len(logits)), -logits if key is None else key))[:count]
    result = np.full_like(logits, NONE)
    result[order] = logits[order]
    return result


def near(values, limit):
    return bool((np.abs(values[np.isfinite(values)] - limit) < BORDERLINE).any())


def logit_bias(generator, logits, _):
    ids = generator.sample(range(len(logits)), min(3, len(logits)))
    biases = [(i, float(np.float32(generator.choice([-4.5, 0.3, 7.25])))) for i in ids]
    processor = processors.SequenceBiasLogitsProcessor([[[i], b] for i, b in biases])
    return ([f"logit_bias={i}={b!r}" for i, b in biases],
            lambda x, h: (run_processor(processor, x, h), False))


def ban(generator, logits, history):
    words = [[generator.randrange(len(logits))]]
    words += [history[-n:] + [generator.randrange(len(logits))] for n in (1, 2)]
    words.append([generator.randrange(len(logits)), generator.randrange(len(logits))])
    processor = processors.NoBadWordsLogitsProcessor(words)
    return (["ban=" + ",".join(map(str, word)) for word in words],
            lambda x, h: (run_processor(processor, x, h), False))


def penalties(generator, logits, history):
    repetition = generator.choice([1.0, 1.3, 0.8])
    frequency, presence = generator.choice([0.0, 0.4, -0.2]), generator.choice([0.0, 0.7])
    window = generator.choice([0, 3, 500])
    exempt = [generator.choice(history)]

    def expected(x, h):
        seen = [i for i in (h[-window:] if window else h) if i not in exempt]
        if seen:
            processor = processors.RepetitionPenaltyLogitsProcessor(repetition)
            x = run_processor(processor, x, seen)
        x = x.astype(np.float64)
        for i in set(seen):
            x[i] -= seen.count(i) * frequency + presence
        return x, False

    words = [f"repetition_penalty={repetition}", f"frequency_penalty={frequency}",
             f"presence_penalty={presence}", f"penalty_window={window}",
             f"penalty_exempt={exempt[0]}"]
    # Nothing is on: the stage is not there, as it should be.
    return words, expected


def dry(generator, logits, history):
    multiplier, base = generator.choice([0.8, 2.0]), generator.choice([1.75, 1.0, 3.0])
    allowed, last = generator.choice([1, 2, 4]), generator.choice([-1, 10, 1000])
    breakers = [[generator.choice(history)], [generator.choice(history), generator.choice(history)]]
    breakers = breakers if generator.random() < 0.5 else []

    def expected(x, h):
        x = x.astype(np.float64)
        window = h if last < 0 else h[-last:]
        n = len(window)
        ends = [e for b in breakers for e in range(len(b), n + 1) if window[e - len(b):e] == b]
        limit = n - max(ends, default=0)
        longest = {}
        for at in range(1, n):  # window[at] followed window[:at]
            match = 0
            while match < min(at, limit) and window[at - 1 - match] == window[n - 1 - match]:
                match += 1
            longest[window[at]] = max(longest.get(window[at], 0), match)
        for token, match in longest.items():
            if match >= allowed:
                x[token] -= min(multiplier * base ** (match - allowed), 1e30)
        return x, False

    words = [f"dry_multiplier={multiplier}", f"dry_base={base}", f"dry_allowed_length={allowed}",
             f"dry_penalty_last_n={last}"]
    return words + ["dry_sequence_breakers=" + ",".join(map(str, b)) for b in breakers], expected


def temperature(generator, *_):
    value = float(np.float32(generator.choice([0.3, 0.7, 2.0])))
    return ([f"temperature={value!r}"],
            lambda x, h: (run_processor(processors.TemperatureLogitsWarper(value), x), False))


def dynamic_temperature(generator, *_):
    middle, span = generator.choice([(1.0, 0.5), (0.5, 0.75), (2.0, 0.25)])
    exponent = generator.choice([0.5, 1.0, 2.0])

    def expected(x, h):
        x = x.astype(np.float64)
        finite = np.isfinite(x)
        if finite.sum() < 2:
            return x, False
        p = softmax(x[finite])
        entropy = -(p * np.log(np.maximum(p, 1e-300))).sum()
        share = max(entropy, 0) / math.log(finite.sum())
        low, high = max(0, middle - span), middle + span
        value = low + (high - low) * share ** exponent
        # Near 0 the quotients grow without bound, and float32 shows it.
        return x / value if value > 0 else x, value < 1e-3

    return ([f"temperature={middle}", f"dynamic_temperature={span}",
             f"dynamic_temperature_exponent={exponent}"], expected)


def top_n_sigma(generator, *_):
    n = float(np.float32(generator.choice([0.3, 1.0, 2.5])))

    def expected(x, h):
        x = x.astype(np.float64)
        limit = x.max() - n * x[np.isfinite(x)].std()
        return np.where(x >= limit, x, NONE), near(x, limit)

    return [f"top_n_sigma={n!r}"], expected


def top_k(generator, *_):
    k = generator.choice([1, 2, 5, 40, 5000])

    def expected(x, h):
        kept = run_processor(processors.TopKLogitsWarper(k), x)  # with ties of the last one
        best = keep_best(x, np.zeros(min(k, int(np.isfinite(x).sum()))))
        assert set(np.flatnonzero(np.isfinite(best))) <= set(np.flatnonzero(np.isfinite(kept)))
        return best, False

    return [f"top_k={k}"], expected


def top_p(generator, *_):
    p = float(np.float32(generator.choice([0.01, 0.3, 0.5, 0.9, 0.999])))

    def expected(x, h):
        x = x.astype(np.float64)
        kept = run_processor(processors.TopPLogitsWarper(p), x)
        sums = np.cumsum(-np.sort(-softmax(x)))
        return keep_best(x, kept), near(sums, p)

    return [f"top_p={p!r}"], expected


def min_p(generator, *_):
    p = float(np.float32(generator.choice([0.001, 0.05, 0.5, 1.0])))

    def expected(x, h):
        x = x.astype(np.float64)
        kept = run_processor(processors.MinPLogitsWarper(p), x)
        ratios = softmax(x) / softmax(x).max()
        return kept, near(ratios[ratios < 1], p)

    return [f"min_p={p!r}"], expected


def typical_p(generator, *_):
    p = float(np.float32(generator.choice([0.2, 0.5, 0.9, 0.99])))

    def expected(x, h):
        x = x.astype(np.float64)
        kept = run_processor(processors.TypicalLogitsWarper(p), x)
        probabilities = softmax(x)
        with np.errstate(divide="ignore", invalid="ignore"):
            surprise = -np.log(probabilities)
            entropy = -np.nansum(probabilities * np.log(probabilities))
        distance = np.where(np.isfinite(x), np.round(np.abs(surprise - entropy), 12), np.inf)
        order = np.lexsort((np.arange(len(x)), -x, distance))
        sums = np.cumsum(probabilities[order])
        count = int((sums < p - 1e-15).sum()) + 1
        result = np.full_like(x, NONE)
        result[order[:count]] = x[order[:count]]
        # transformers keeps every token at the last one's distance, we the first of them.
        assert set(np.flatnonzero(np.isfinite(result))) <= set(np.flatnonzero(np.isfinite(kept))) \
            or near(sums, p), (x, p)
        return result, near(sums, p)

    return [f"typical_p={p!r}"], expected


def xtc(generator, *_):
    threshold = float(np.float32(generator.choice([0.05, 0.1, 0.3, 0.5])))

    def expected(x, h):
        x = x.astype(np.float64)
        p = softmax(x)
        reach = [i for i in np.lexsort((np.arange(len(x)), -x)) if p[i] >= threshold]
        result = x.copy()
        if len(reach) > 1:
            result[reach[:-1]] = NONE
        return result, near(p, threshold)

    return ["xtc_probability=1", f"xtc_threshold={threshold!r}"], expected


STAGES = [logit_bias, ban, penalties, dry, temperature, dynamic_temperature, top_n_sigma, top_k,
          top_p, min_p, typical_p, xtc]


def bits(logits):
    return " ".join(f"{x:08x}" for x in np.asarray(logits, np.float32).view(np.uint32))


def run(helper, lines):
    result = subprocess.run([helper], input="\n".join(lines) + "\n", text=True,
                            capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
    answers = result.stdout.splitlines()
    assert len(answers) == len(lines), (len(answers), len(lines))
    return answers


def agrees(answer, expected):
    found = {int(i): struct.unpack("<f", bytes.fromhex(word)[::-1])[0]
             for i, word in (part.split("=") for part in answer.split())}
    if set(found) != set(np.flatnonzero(np.isfinite(expected)).tolist()):
        return False
    return all(math.isclose(value, expected[i], rel_tol=2e-6, abs_tol=2e-6)
               for i, value in found.items())


def check_stage(helper, stage, generator):
    lines, checks = [], []
    for _ in range(VECTORS):
        logits = random_vector(generator)
        history = random_history(generator, len(logits))
        words, expected = stage(generator, logits, history)
        lines.append(f"logits {' '.join(words)} history={','.join(map(str, history))} : "
                     + bits(logits))
        checks.append((logits, history, words, expected))
    excused = errors = 0
    for answer, (logits, history, words, expected) in zip(run(helper, lines), checks):
        is_bad = not (logits < np.inf).all()
        if is_bad or answer.startswith("error"):
            first = int(np.flatnonzero(~(logits < np.inf))[0]) if is_bad else None
            ruled_out = not is_bad and not np.isfinite(expected(logits, history)[0]).any()
            assert answer.startswith("error") and f"position {len(history)}" in answer, answer
            assert ruled_out or f"token {first} is" in answer, (answer, words, logits)
            errors += 1
            continue
        values, borderline = expected(logits, history)
        if agrees(answer, values):
            continue
        assert borderline, (stage.__name__, words, logits, answer, values)
        excused += 1
    print(f"{stage.__name__}: {VECTORS} vectors agree; {errors} refused as bad logits, "
          f"{excused} at a border")
    assert 0 < errors < VECTORS / 5 and excused <= VECTORS // 50, (errors, excused)


def uniform(seed, position, stage):
    words = philox4x32(seed, [position, stage, 0, 0])
    return ((words[0] << 32 | words[1]) >> 11) * 2.0 ** -53


def draw(logits, number):
    """The first token at which the cumulative sum passes the number."""
    p = softmax(logits)
    return int(np.flatnonzero(np.cumsum(p) > number * p.sum())[0]), p


def check_draws(helper, generator):
    """The draw, and mirostat 2 over 40 steps, from Philox's own numbers."""
    lines, checks = [], []
    for case in range(VECTORS):
        rows, count = (40, 50) if case % 10 == 0 else (3, generator.choice([2, 9, 300]))
        seed = generator.getrandbits(64)
        logits = np.array([[generator.gauss(0, 2) for _ in range(count)] for _ in range(rows)],
                          np.float32)
        logits[:, 1:][np.array([[generator.random() < 0.1 for _ in range(count - 1)]
                                for _ in range(rows)])] = -np.inf
        tau, eta = float(np.float32(generator.choice([1.5, 3.0]))), float(np.float32(0.3))
        is_mirostat = case % 2 == 0
        words = f"mirostat=2 mirostat_tau={tau!r} mirostat_eta={eta!r}" if is_mirostat else ""
        lines.append(f"sample {words} seed={seed} rows={rows} : {bits(logits.ravel())}")
        expected, mu = [], 2 * tau
        for position, row in enumerate(logits.astype(np.float64)):
            if not is_mirostat:
                expected.append(draw(row, uniform(seed, position, 5))[0])
                continue
            with np.errstate(divide="ignore"):
                surprise = -np.log2(softmax(row))
            row = np.where((surprise <= mu) | (row == row.max()), row, NONE)
            token, p = draw(row, uniform(seed, position, 16))
            expected.append(token)
            mu -= eta * (-math.log2(p[token]) - tau)
        checks.append(expected)
    for line, answer, expected in zip(lines, run(helper, lines), checks):
        assert list(map(int, answer.split())) == expected, (line[:80], answer, expected)
    print(f"draw and mirostat: {VECTORS} sequences agree")


def main():
    for number, stage in enumerate(STAGES):
        check_stage(sys.argv[1], stage, random.Random(20240521 + number))
    check_draws(sys.argv[1], random.Random(77))
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""What the recorder costs, by turns with none: `vitrine bench audit` on the fused path (none, deferred)
and on the reference path (none, naive, deferred)."""

import json

# What the whole table is made of, and the least that a shorter one is made of.
TRIALS, TOKENS, LEAST_TOKENS = 5, 1000, 50
SLICES, LEAST_SLICES = 200, 20
SLICE_TOKENS, LEAST_SLICE_TOKENS = 50, 5
START_SECONDS = 4  # of a process: libtorch, the device, the weights


def run(session):
    session.step("fused", lambda: measure(session, "fused", 2, session.left() * 0.4))
    session.step("reference", lambda: measure(session, "reference", 3, session.left()))


def plan(rate, seconds, modes, most=(TOKENS, SLICE_TOKENS, SLICES)):
    """(tokens, tokens of a slice, slices) that take so many seconds at so many tokens a second: the
    slices get three quarters, and first become shorter, then fewer."""
    tokens, slice_tokens, slices = most
    can = rate * max(seconds, 0)
    slice_pairs = 2 * (modes - 1)
    if TRIALS * modes * tokens + slices * slice_pairs * slice_tokens > can:
        tokens = min(tokens, max(LEAST_TOKENS, int(can / 4 / (TRIALS * modes))))
        pairs = (can - TRIALS * modes * tokens) / slice_pairs
        slice_tokens = min(slice_tokens, max(LEAST_SLICE_TOKENS, int(pairs / slices)))
        slices = min(slices, max(LEAST_SLICES, int(pairs / slice_tokens)))
    return tokens, slice_tokens, slices


def bench(session, kernels, tokens, trials, slices, slice_tokens, seconds):
    out = session.scratch / f"audit-{kernels}.json"
    out.unlink(missing_ok=True)
    session.vitrine("bench", "audit", session.find(session.facts["audit_model"]), "--trials", trials,
                    "--tokens", tokens, "--slices", slices, "--slice-tokens", slice_tokens,
                    "--kv-type", "f32", "--out", out, *session.facts["devices"][kernels],
                    seconds=seconds)
    return json.loads(out.read_text())


def measure(session, kernels, modes, seconds):
    end = session.left() - seconds
    pace = session.facts["audit_pace"]
    first = bench(session, kernels, pace, 1, 2, 2, seconds)
    rate = min(trial["tokens"] / trial["seconds"] for trial in first["trials"])
    most = session.facts["audit_most"]
    tokens, slice_tokens, slices = plan(rate, (session.left() - end - START_SECONDS) * 0.85, modes,
                                        most)
    found = bench(session, kernels, tokens, TRIALS, slices, slice_tokens, session.left() - end)
    medians = {}
    for trial in found["trials"]:
        medians.setdefault(trial["mode"], []).append(trial["tokens"] / trial["seconds"])
    session.keep(**{kernels: {
        "trials": TRIALS, "tokens": tokens, "slices": slices, "slice_tokens": slice_tokens,
        "is_whole": (tokens, slice_tokens, slices) == (TOKENS, SLICE_TOKENS, SLICES),
        "tokens_per_second": {mode: sorted(rates)[len(rates) // 2] for mode, rates in medians.items()},
        "overhead": found["overhead"], "verdict": found["verdict"]}})

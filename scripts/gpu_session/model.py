# SPDX-License-Identifier: Apache-2.0
"""The shipped model, greedily, beside the log that the CPU made when the bundle was made: ids and
digests of the logits, and the first value that differs."""

import json
import struct

from .session import Failed

# Where a step's records can differ, in the order in which a step makes them.
EXACT_LAYER = ("residual_norm", "experts", "weights")
# Merged in another order on the device (docs/cuda.md).
NEAR = ("logprob", "entropy")
NEAR_LIMIT = 1e-6


def run(session):
    expected = json.loads((session.work / "cpu/greedy.json").read_text())
    for kernels in ("fused", "reference"):
        # One that hangs leaves the other its time.
        seconds = session.left() * (0.6 if kernels == "fused" else 1)
        session.step(kernels, lambda kernels=kernels, seconds=seconds: compare_on(
            session, kernels, expected, seconds))


def greedy_command(model, facts, log):
    """What scripts/gpu-session runs on the CPU, and a bundle on the device."""
    return ["generate", str(model), "-p", facts["prompt"], "-n", str(facts["tokens"]),
            "--temperature", "0", "--seed", "1", "--ignore-end-of-text", "--kv-type", "f32",
            "--audit", str(log), "--overwrite", "--quiet"]


def compare_on(session, kernels, expected, seconds):
    log = session.scratch / f"greedy-{kernels}.json"
    session.vitrine(*greedy_command(session.find(session.facts["model"]), session.facts["greedy"], log),
                    *session.facts["devices"][kernels], seconds=seconds)
    found = compare(expected, json.loads(log.read_text()))
    session.keep(**{kernels: found})
    # On the reference path bits are ATen's own; ids are what it is asked for.
    wrong = found["ids_equal"] != found["ids"]
    if kernels == "fused":
        wrong = wrong or found["digests_equal"] != found["digests"] or found["first_difference"]
    if wrong:
        raise Failed(f"{found['ids_equal']} of {found['ids']} ids and {found['digests_equal']} of "
                     f"{found['digests']} digests are the CPU's; first: {found['first_difference']}")


def bits(value):
    if isinstance(value, float):
        return f"0x{struct.unpack('<I', struct.pack('<f', value))[0]:08x}"
    return None


def fields(record):
    """(name, value, how near it must be) of one position, in order."""
    yield "token", record["token"], 0
    for layer in record["layers"]:
        for name in EXACT_LAYER:
            values = layer[name]
            for i, value in enumerate(values if isinstance(values, list) else [values]):
                yield f"layer {layer['layer']} {name} {i}", value, 0
    prediction = record["prediction"]
    if prediction is None:
        return
    yield "logits_digest", prediction["logits_digest"], 0
    for name in NEAR:
        yield name, prediction[name], NEAR_LIMIT
    yield "prediction", prediction["token"], 0


def compare(expected, found):
    ids = ids_equal = digests = digests_equal = 0
    largest = 0.0
    first = None
    for ours, theirs in zip(expected["records"], found["records"]):
        if ours["prediction"] is not None and theirs["prediction"] is not None:
            ids += 1
            digests += 1
            a, b = ours["prediction"], theirs["prediction"]
            ids_equal += a["token"] == b["token"]
            digests_equal += a["logits_digest"] == b["logits_digest"]
            largest = max(largest, *(abs(a[name] - b[name]) for name in NEAR))
        if first is None:
            first = first_difference(ours, theirs)
    if len(expected["records"]) != len(found["records"]):
        first = first or {"field": "records", "cpu": len(expected["records"]),
                          "device": len(found["records"])}
    return {"ids": ids, "ids_equal": ids_equal, "digests": digests,
            "digests_equal": digests_equal, "largest_logprob_difference": largest,
            "first_difference": first}


def first_difference(ours, theirs):
    for (name, a, near), (_, b, _) in zip(fields(ours), fields(theirs)):
        if a != b and not (near and abs(a - b) <= near * max(1.0, abs(a))):
            return {"position": ours["position"], "field": name, "cpu": a, "device": b,
                    "cpu_bits": bits(a), "device_bits": bits(b)}
    return None

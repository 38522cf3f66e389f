# SPDX-License-Identifier: Apache-2.0
"""Answers to the questions of docs/gpu-results.md by their numbers, and the summary of twenty lines."""

SUMMARY_LINES = 20
SUMMARY_WIDTH = 400


def lines_of(results, *beginnings, tokens=None):
    """Kernels of the benches by the beginnings of their names."""
    large = results["parts"].get("large", {})
    for program in ("cuda_products_bench", "cuda_kernels_bench"):
        for line in large.get(program, []):
            if line["name"].startswith(beginnings) and tokens in (None, line["tokens"]):
                yield line


def part(results, name, *keys):
    found = results["parts"].get(name, {})
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def bandwidth(results):
    """GB/s: the bench's, or else of the engine's own measurement."""
    read = part(results, "card", "read_gb_per_second")
    if read is None:
        for run in (part(results, "large", "runs") or {}).values():
            read = (run["read_bandwidth"] or 0) / 1e9 or None
    return read


def shares(results, *beginnings, most_tokens=8, least_tokens=1):
    """The range of the shares of the bandwidth that these kernels reach."""
    read = bandwidth(results)
    rates = [line["gb_per_second"] for line in lines_of(results, *beginnings)
             if least_tokens <= line["tokens"] <= most_tokens]
    if not rates:
        return None
    if read is None:
        return f"{min(rates):.0f} to {max(rates):.0f} GB/s"
    return f"{100 * min(rates) / read:.0f} to {100 * max(rates) / read:.0f} %"


def microseconds(results, beginning, tokens):
    for line in lines_of(results, beginning, tokens=tokens):
        return f"{line['microseconds']:.2f} us"
    return None


def rate_of_tiles(results, beginnings, tokens):
    """TFLOP/s of experts' products for so many tokens, beside torch's bf16."""
    peak = part(results, "card", "torch", "bf16_tflops")
    found = []
    for line in lines_of(results, *beginnings, tokens=tokens):
        matrices = 2 if line["name"].startswith("gate_up") else 1
        work = 2.0 * tokens * 8 * matrices * 768 * 2048
        rate = work / line["microseconds"] / 1e6
        found.append(f"{line['name']} {rate:.0f}" + (f" ({100 * rate / peak:.0f} %)" if peak else ""))
    return ("TFLOP/s: " + ", ".join(found)) if found else None


def tests_answer(results):
    programs = part(results, "tests", "programs")
    if not programs:
        return None
    told = []
    for name, one in programs.items():
        text = f"{name} {one['passed']} of {one['tests']}"
        if one["failed"]:
            first = next(iter(one["failed"]))
            text += f", {len(one['failed'])} failed (first {first})"
        if one["skipped"]:
            text += f", {one['skipped']} skipped"
        if one["not_run"]:
            text += f", {len(one['not_run'])} not run"
        told.append(text)
    return "; ".join(told)


def ahead(results):
    runs = part(results, "large", "runs") or {}
    for name in sorted(runs, key=lambda name: ", " in name):  # those with all weights first
        run = runs[name]
        for batch in run.get("batches", []):
            if batch["batch"] == 1 and "ahead_ratio" in batch:
                saved = 1e6 * (1 / batch["chosen_tps"] - 1 / batch["ahead_tps"])
                return f"{batch['ahead_ratio']:.3f} times the speed, {saved:.0f} us a token"
    return None


def recorder(results):
    told = []
    for path in ("fused", "reference"):
        found = part(results, "audit", path)
        if not found:
            continue
        for mode, one in found["overhead"].items():
            told.append(f"{path} {mode} {100 * one['median']:+.2f} % [{100 * one['low']:+.2f}, "
                        f"{100 * one['high']:+.2f}]")
    return ", ".join(told) or None


def whole(results):
    told = []
    runs = part(results, "large", "runs") or {}
    for name, run in runs.items():
        if ", " in name and name.split(", ")[0] in runs:
            continue  # the same with all weights is there
        speeds = ", ".join(f"{one['batch']}: {one['decode_tps']:.0f}" for one in run.get("batches", []))
        share = run["bandwidth_share"]
        told.append(f"{name} {speeds} tokens/s"
                    + (f", {100 * share:.0f} % of the bandwidth" if share else "")
                    + f", prefill {run['prefill_tps']:.0f}")
    return "; ".join(told) or None


def joint(results):
    told = []
    for kind in ("mixture", "product"):
        found = part(results, "federation", kind)
        if found:
            extra = 1e6 * (1 / found["tokens_per_second"] - 3 / found["base_tokens_per_second"])
            told.append(f"{kind} {found['tokens_per_second']:.0f} tokens/s, one specialist "
                        f"{found['base_tokens_per_second']:.0f}, {extra:.0f} us above three")
    return "; ".join(told) or None


def rope(results):
    """A norm of whole rows beside one of each head, which the bench measures first."""
    whole_rows = microseconds(results, "rope_kv_write, whole rows", 1)
    heads = microseconds(results, "rope_kv_write", 1)
    return f"{whole_rows}, by heads {heads}" if whole_rows else None


def several(*told):
    return ", ".join(text for text in told if text) or None


def answers(results):
    """What is known so far, by the numbers of docs/gpu-results.md."""
    read = part(results, "card", "read_gb_per_second")
    found = {
        1: tests_answer(results),
        2: f"{read:.0f} GB/s" if read else None,
        3: shares(results, *(f"{name} W4A{bits}/128" for name in ("gate_up", "down")
                             for bits in (8, 16))),
        4: shares(results, "gate_up W4A8/32", "down W4A8/32"),
        5: shares(results, "gate_up Q4_K", "down Q4_K"),
        6: shares(results, "gate_up Q6_K", "down Q6_K"),
        7: shares(results, "gate_up Q2_K", "down Q2_K"),
        8: shares(results, "gate_up W8A8/128", "down W8A8/128"),
        9: rate_of_tiles(results, ("gate_up W4A8/128 tile 32", "gate_up W4A16/128 tile 32"), 4096),
        10: several(shares(results, "linear_float, router"),
                    microseconds(results, "linear_float, router", 1)),
        11: shares(results, "attention at", most_tokens=64),
        12: shares(results, "attention_mma at", most_tokens=64),
        13: microseconds(results, "rms_norm, bf16", 1),
        14: microseconds(results, "sample_rows", 1),
        15: microseconds(results, "group_by_expert", 4096),
        16: rope(results),
        17: joint(results),
        18: ahead(results),
        20: rate_of_tiles(results, ("gate_up E4M3A",), 4096),
        21: recorder(results),
        22: whole(results),
    }
    return {str(number): text for number, text in found.items() if text}


def model_line(results):
    told = []
    for path in ("fused", "reference"):
        found = part(results, "model", path)
        if found:
            text = (f"{path} {found['ids_equal']}/{found['ids']} ids, {found['digests_equal']}/"
                    f"{found['digests']} digests")
            first = found["first_difference"]
            if path == "fused" and first:
                text += f", first at {first['position']}: {first['field']} {first['cpu']} {first['device']}"
            told.append(text)
    return "; ".join(told) or "nothing"


def summary_lines(results):
    bundle = results["bundle"]
    card = part(results, "card", "torch", "name") or part(results, "card", "smi", "name") or "no GPU"
    driver = part(results, "card", "smi", "driver_version") or "?"
    parts = ", ".join(f"{name} {one['status']} {one.get('seconds', 0):.0f} s"
                      for name, one in results["parts"].items())
    lines = [f"commit {bundle['commit'][:12]}, {card}, driver {driver}, bf16 "
             f"{part(results, 'card', 'torch', 'bf16_tflops') or 0:.0f} TFLOP/s, "
             f"{results.get('seconds', 0):.0f} s", parts]
    lines += results["notes"][:2]
    lines.append("model: " + model_line(results))
    told = [(number, text) for number, text in results["answers"].items()]
    room = SUMMARY_LINES - len(lines)
    # The first questions and the last ones have a line each; where there are more answers than lines,
    # those in between share them.
    while len(told) > room:
        shortest = min(range(1, len(told) - 1), key=lambda i: len(told[i][1]) + len(told[i + 1][1]))
        (a, one), (b, other) = told[shortest:shortest + 2]
        told[shortest:shortest + 2] = [(a, f"{one} | {b}: {other}")]
    return lines + [f"{number}: {text}" for number, text in told]


def write(session):
    text = "\n".join(line[:SUMMARY_WIDTH] for line in summary_lines(session.results))
    (session.out / "summary.txt").write_text(text + "\n")
    return text

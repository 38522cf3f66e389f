# SPDX-License-Identifier: Apache-2.0
"""Vitrine's masks and those of llguidance and xgrammar over the same folder of MaskBench's files.

    python3 -m venv PEERS && PEERS/bin/pip install llguidance==1.9.1 xgrammar==0.2.8 tokenizers
    PEERS/bin/python bench/peers/compare_masks.py TOKENIZER SCHEMAS [--every 10] [--out FILE]

TOKENIZER: a folder with tokenizer.json. Of SCHEMAS every N-th file is used. Vitrine runs first and
last, the peers between, each in a process of its own, on one thread. A peer's times are those of
its own call from Python, as MaskBench measures them: a call costs a few tenths of a microsecond.
Counted as `vitrine bench constraint` counts; a schema that takes longer than --time-limit counts as
a timeout, and so does one that ends its process.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = ["passing", "compile_error", "validation_error", "invalidation_error", "timeout"]


class LlGuidance:
    def __init__(self, folder):
        import llguidance
        import numpy
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        self.matcher = llguidance.LLMatcher
        self.tokenizer = llguidance.LLTokenizer(text, slices=llguidance.LLTokenizer.json_slices())
        self.mask = numpy.zeros((self.tokenizer.vocab_size + 31) // 32, dtype=numpy.uint32)

    def compile(self, schema):
        grammar = self.matcher.grammar_from_json_schema(json.dumps(schema))
        matcher = self.matcher(self.tokenizer, grammar)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def start(self, compiled):
        return compiled.deep_copy()

    def fill(self, matcher):
        matcher.unsafe_compute_mask_ptr(self.mask.ctypes.data, self.mask.nbytes)

    def allows(self, matcher, token):
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return bool(self.mask[token // 32] >> (token % 32) & 1)

    def accept(self, matcher, token):
        return matcher.consume_token(token)

    def is_complete(self, matcher):
        return matcher.is_accepting()


class XGrammar:
    def __init__(self, folder):
        import numpy
        import tokenizers
        import xgrammar
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        ends = [i for name, i in tokens if name in ("<|im_end|>", "<|endoftext|>", "</s>")]
        info = xgrammar.TokenizerInfo([name for name, _ in tokens],
                                      xgrammar.VocabType.BYTE_LEVEL, stop_token_ids=ends[:1])
        self.xgrammar, self.end = xgrammar, ends[0]
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.mask = numpy.zeros((1, (info.vocab_size + 31) // 32), dtype=numpy.int32)

    def compile(self, schema):
        return self.compiler.compile_json_schema(json.dumps(schema), strict_mode=False)

    def start(self, compiled):
        return self.xgrammar.GrammarMatcher(compiled)

    def fill(self, matcher):
        matcher.fill_next_token_bitmask(self.mask)

    def allows(self, _, token):
        return bool(int(self.mask[0, token // 32]) >> (token % 32) & 1)

    def accept(self, matcher, token):
        return matcher.accept_token(token)

    def is_complete(self, _):
        return self.allows(None, self.end)


def instance_passes(engine, compiled, ids, valid, masks):
    matcher = engine.start(compiled)
    for token in ids:
        start = time.perf_counter()
        engine.fill(matcher)
        masks.append(1e6 * (time.perf_counter() - start))
        if not engine.allows(matcher, token):
            return not valid
        if not engine.accept(matcher, token):
            return not valid
    start = time.perf_counter()
    engine.fill(matcher)
    masks.append(1e6 * (time.perf_counter() - start))
    return engine.is_complete(matcher) == valid


def run_file(engine, tokenizer, path):
    """Which kind, microseconds of each mask, microseconds to the first one (None: no such)."""
    file = json.loads(path.read_text(encoding="utf-8"))
    masks = []
    start = time.perf_counter()
    try:
        compiled = engine.compile(file["schema"])
        matcher = engine.start(compiled)
        engine.fill(matcher)
        first = 1e6 * (time.perf_counter() - start)
    except Exception:  # pylint: disable=broad-except
        return "compile_error", masks, None
    for test in file["tests"]:
        ids = tokenizer.encode(json.dumps(test["data"]), add_special_tokens=False).ids
        try:
            passes = instance_passes(engine, compiled, ids, test["valid"], masks)
        except Exception:  # pylint: disable=broad-except
            passes = False
        if not passes:
            return ("validation_error" if test["valid"] else "invalidation_error"), masks, first
    return "passing", masks, first


def serve(kind, folder, pipe):
    import tokenizers
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    engine = kind(folder)
    pipe.send("ready")
    while True:
        pipe.send(run_file(engine, tokenizer, pipe.recv()))


def run_peer(kind, folder, files, time_limit):
    context = multiprocessing.get_context("spawn")
    counts, masks, firsts = dict.fromkeys(KINDS, 0), [], []
    child = None
    for path in files:
        if child is None:
            mine, theirs = context.Pipe()
            child = context.Process(target=serve, args=(kind, folder, theirs), daemon=True)
            child.start()
            theirs.close()
            mine.recv()
        mine.send(path)
        try:
            answer = mine.recv() if mine.poll(time_limit) else None
        except EOFError:
            answer = None
        if answer is None:
            counts["timeout"] += 1
            child.kill()
            child.join()
            child = None
            continue
        counts[answer[0]] += 1
        masks += answer[1]
        if answer[2] is not None:
            firsts.append(answer[2])
    if child is not None:
        child.kill()
    return {"schemas": len(files), **counts, "tbm_us": statistics(masks),
            "ttfm_us": statistics(firsts)}


def statistics(values):
    import numpy
    if not values:
        return {"n": 0}
    at = {"p50": 50, "p99": 99, "p99.9": 99.9, "p100": 100}
    return {"n": len(values), "avg": float(numpy.mean(values)),
            **{name: float(numpy.percentile(values, share)) for name, share in at.items()}}


def run_vitrine(program, folder, files, time_limit):
    with tempfile.TemporaryDirectory() as work:
        schemas = pathlib.Path(work) / "schemas"
        schemas.mkdir()
        for path in files:
            os.symlink(path.resolve(), schemas / path.name)
        out = pathlib.Path(work) / "out.json"
        subprocess.run([program, "bench", "constraint", folder, schemas, "--out", out,
                        "--time-limit", str(time_limit)], check=True, stdout=subprocess.DEVNULL)
        return json.loads(out.read_text(encoding="utf-8"))["summary"]


def line_of(name, summary):
    masks, firsts = summary["tbm_us"], summary["ttfm_us"]
    return (f"{name:<12} passing {summary['passing']:5} of {summary['schemas']}, compile "
            f"{summary['compile_error']}, validation {summary['validation_error']}, invalidation "
            f"{summary['invalidation_error']}, timeout {summary['timeout']}; TBM p50 / p99 / p99.9 "
            f"{masks['p50']:.1f} / {masks['p99']:.1f} / {masks['p99.9']:.1f} us; TTFM p50 / p99 "
            f"{firsts['p50'] / 1000:.2f} / {firsts['p99'] / 1000:.1f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=pathlib.Path, help="folder with tokenizer.json")
    parser.add_argument("schemas", type=pathlib.Path, help="folder of MaskBench's files")
    parser.add_argument("--every", type=int, default=1, help="use every N-th file")
    parser.add_argument("--time-limit", type=float, default=60, help="seconds for one schema")
    parser.add_argument("--peers", default="llguidance,xgrammar")
    parser.add_argument("--vitrine", type=pathlib.Path, default=ROOT / "build" / "vitrine")
    parser.add_argument("--out", type=pathlib.Path, help="JSON file for all figures")
    arguments = parser.parse_args()
    files = sorted(arguments.schemas.glob("*.json"))[::arguments.every]
    kinds = {"llguidance": LlGuidance, "xgrammar": XGrammar}
    found = {}

    def measure(name, summary):
        found[name] = summary
        print(line_of(name, summary), flush=True)

    limit = arguments.time_limit
    measure("vitrine", run_vitrine(arguments.vitrine, arguments.tokenizer, files, limit))
    for name in filter(None, arguments.peers.split(",")):
        measure(name, run_peer(kinds[name], arguments.tokenizer, files, limit))
    measure("vitrine again", run_vitrine(arguments.vitrine, arguments.tokenizer, files, limit))
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""How far Vitrine's and its peers' predictions are from those of the same file's weights in float32.

    compare_kl.py MODEL.gguf TEXT [-p 500] [--threads 2] [--kv-type f32|i16] [--without-amx]
                  [--ik-llama] [--chunk 512] [--row-logits build/tests/row_logits]
                  [--llama-logits PROGRAM] [--ik-logits PROGRAM] [--json OUT]

llama.cpp's program is built as compare.py builds its own (--cache), unless --llama-logits names it;
with --ik-llama ik_llama.cpp takes part, as PyPI's wheel of `ik-llama-cpp-python` has it. TEXT is a
text, or a JSON list of token ids.

The file's weights, dequantized to float32 by `gguf`, in transformers give the reference distribution
of each of the first -p positions of the text (architectures `llama` and `qwen2`); the Kullback-Leibler
divergence from it, in nats, is averaged, over all positions and over each --chunk of them, which is
also what is held in memory at a time. Whether ours is larger than a peer's is a matter of chance as
long as the interval of their ratio holds 1: positions are drawn again 10,000 times (bootstrap, pairs
kept), 95 % of the ratios lie in it. Needs the packages of tests/requirements.txt.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import torch
import transformers
from compare import HERE, ROOT, build_llama, fail, run

sys.path.insert(0, str(ROOT / "tests" / "model"))
from dequantized import dequantized_model  # noqa: E402

DRAWS = 10_000
IK_PACKAGE, IK_VERSION = "ik-llama-cpp-python", "0.1.5"


def unpack_ik_llama(cache):
    """A folder with ik_llama.cpp's headers and libraries, out of the wheel for this interpreter."""
    folder = cache / f"ik_llama_cpp_python-{IK_VERSION}"
    if not (folder / "include" / "llama.h").is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                 "--no-deps", "--only-binary", ":all:", "--dest", scratch,
                 f"{IK_PACKAGE}=={IK_VERSION}"],
                f"the download of {IK_PACKAGE} {IK_VERSION}", stdout=sys.stderr)
            unpacked = pathlib.Path(scratch, "unpacked")
            with zipfile.ZipFile(next(pathlib.Path(scratch).glob("*.whl"))) as wheel:
                wheel.extractall(unpacked)
            shutil.rmtree(folder, ignore_errors=True)
            unpacked.rename(folder)
    return folder


def build_ik_llama(cache):
    """llama_logits.cc with ik_llama.cpp's libraries, built where it is older than its source."""
    folder = unpack_ik_llama(cache)
    source, program = HERE / "llama_logits.cc", folder / "ik_llama_logits"
    if not program.is_file() or program.stat().st_mtime < source.stat().st_mtime:
        run(["c++", "-std=c++17", "-O2", "-I", folder / "include", source, "-L", folder / "lib64",
             "-lllama", "-lggml", f"-Wl,-rpath,{folder / 'lib64'}:{folder}/ik_llama_cpp_python.libs",
             "-Wl,--allow-shlib-undefined", "-o", program], "the compiler")
    return program


def reference_rows(model, ids, chunk):
    """Log-probabilities of each chunk of positions, in float64."""
    cache = transformers.DynamicCache(config=model.config)
    for first in range(0, len(ids), chunk):
        logits = model(torch.tensor([ids[first:first + chunk]]), past_key_values=cache,
                       use_cache=True).logits[0]
        yield torch.log_softmax(logits.double(), -1)


def divergences(model, ids, chunk, files):
    """{name: [positions] of divergences from the reference} of files of logits."""
    found = {name: [] for name in files}
    first = 0
    with torch.inference_mode():
        for reference in reference_rows(model, ids, chunk):
            probs, last = reference.exp(), first + len(reference)
            for name, path in files.items():
                logits = np.memmap(path, np.float32, "r", shape=(len(ids), reference.shape[1]))
                other = torch.log_softmax(torch.from_numpy(np.array(logits[first:last])).double(), -1)
                found[name].append((probs * (reference - other)).sum(-1).numpy())
            first = last
    return {name: np.concatenate(parts) for name, parts in found.items()}


def ratio_of(ours, other):
    """The ratio of the means, and where 95 % of it lie when positions are drawn again."""
    generator = np.random.default_rng(1)
    ratios = []
    for _ in range(DRAWS):
        drawn = generator.integers(0, len(ours), len(ours))
        ratios.append(ours[drawn].mean() / other[drawn].mean())
    low, high = np.quantile(ratios, (0.025, 0.975))
    return {"ratio": ours.mean() / other.mean(), "low": low, "high": high}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path, help="a text, or token ids in NAME.json")
    parser.add_argument("-p", "--positions", type=int, default=500)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-type", choices=("f32", "i16"),
                        help="what ours keeps keys and values in, other than its default; "
                             "the peers' are float16")
    parser.add_argument("--chunk", type=int, default=512, help="positions at a time")
    parser.add_argument("--without-amx", action="store_true")
    parser.add_argument("--row-logits", type=pathlib.Path,
                        default=ROOT / "build" / "tests" / "row_logits")
    parser.add_argument("--llama-logits", type=pathlib.Path)
    parser.add_argument("--ik-llama", action="store_true", help="ik_llama.cpp too")
    parser.add_argument("--ik-logits", type=pathlib.Path, help="its program; implies --ik-llama")
    parser.add_argument("--vitrine", type=pathlib.Path, default=ROOT / "build" / "vitrine")
    parser.add_argument("--cache", type=pathlib.Path,
                        default=pathlib.Path.home() / ".cache" / "vitrine" / "peers")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of the build")
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    if min(arguments.positions, arguments.threads, arguments.chunk, arguments.jobs) < 1:
        parser.error("expected counts from 1 on")
    return arguments


def read_ids(arguments):
    if arguments.text.suffix == ".json":
        ids = json.loads(arguments.text.read_text())
    else:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as beginning:
            beginning.write(arguments.text.read_text()[:arguments.positions * 16])
            beginning.flush()
            ids = json.loads(run([arguments.vitrine, "tokenize", arguments.model, "-f", beginning.name,
                                  "--json"], "vitrine tokenize", stdout=subprocess.PIPE))["ids"]
    if len(ids) < arguments.positions:
        fail(f"{arguments.text} has {len(ids)} tokens, fewer than -p {arguments.positions}")
    return ids[:arguments.positions]


def main():
    arguments = parse_arguments()
    programs = {"vitrine": arguments.row_logits,
                "llama.cpp": arguments.llama_logits or build_llama(
                    arguments.cache, arguments.jobs, not arguments.without_amx, "llama_logits")}
    if arguments.ik_llama or arguments.ik_logits:
        programs["ik_llama.cpp"] = arguments.ik_logits or build_ik_llama(arguments.cache)
    ids = read_ids(arguments)
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    model = dequantized_model(arguments.model)
    with tempfile.TemporaryDirectory() as scratch:
        files = {}
        for name, program in programs.items():
            files[name] = pathlib.Path(scratch, name)
            more = [arguments.kv_type] if arguments.kv_type and name == "vitrine" else []
            run([program, arguments.model, arguments.threads, files[name], *more], name,
                input=" ".join(map(str, ids)))
        found = divergences(model, ids, arguments.chunk, files)
    peers = {name: ratio_of(found["vitrine"], found[name]) for name in found if name != "vitrine"}
    for name, divergence in found.items():
        print(f"{name:<13} {divergence.mean():.6f} nats (median {np.median(divergence):.6f}, "
              f"largest {divergence.max():.4f}) over {len(ids)} positions")
    for name, ratio in peers.items():
        print(f"to {name:<13}{ratio['ratio']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})")
    starts = range(0, len(ids), arguments.chunk)
    by_position = [{"first": first, **{name: values[first:first + arguments.chunk].mean()
                                       for name, values in found.items()}} for first in starts]
    for row in by_position if len(starts) > 1 else ():
        print(f"from {row['first']:<8} " + "   ".join(f"{name} {row[name]:.6f}" for name in found))
    if arguments.json:
        result = {"positions": len(ids), **{name: values.mean() for name, values in found.items()},
                  "peers": peers, "by_position": by_position}
        arguments.json.write_text(json.dumps(result, indent=1, default=float) + "\n")


if __name__ == "__main__":
    main()

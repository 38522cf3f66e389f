# SPDX-License-Identifier: Apache-2.0
"""What transformers makes of the oracles when a key of their config.json is left out.

    absent_keys.py ORACLES > tests/data/absent_keys.json

ORACLES is the folder of checkpoints (tests/data/oracles.tar.xz). A key is left out of the config as
it is, of an object in it ("rope_parameters.rope_theta"), or of the same config in the spelling from
before transformers 5 ("old: rope_theta"). Of each oracle the result has what comes of it: keys
without which the greedy ids stay ("same"), without which the model is refused or lacks tensors
("refused"), or other ids, up to where two of them are as good as equal. Run by hand, with a new
version of transformers; load_test reads the result.
"""

import copy
import json
import os
import pathlib
import shutil
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
import transformers  # noqa: E402

NUM_GREEDY = 8
MARGIN = 1e-3
# Says nothing of an answer: padding, which is refused where the vocabulary is small.
IGNORED = {"transformers_version", "pad_token_id"}


def old_spelling(name, config):
    """The config as its publisher wrote it before transformers 5; none where there is no such form."""
    rope = config.get("rope_parameters")
    if rope is None or "rope_theta" not in rope:
        return None
    config = copy.deepcopy(config)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    share = rope.pop("partial_rotary_factor", None)
    if share is not None and name == "minimax_m2":
        config["rotary_dim"] = int(share * config["head_dim"])
    elif share is not None:
        config["partial_rotary_factor"] = share
    if rope.get("rope_type", "default") != "default":
        config["rope_scaling"] = rope
    return config


def without_each(config, prefix=""):
    """Pairs of a key and the config without it."""
    for key in config:
        if key in IGNORED:
            continue
        less = copy.deepcopy(config)
        del less[key]
        yield prefix + key, less
        if not isinstance(config[key], dict):
            continue
        for inner, part in without_each(config[key], prefix + key + "."):
            less = copy.deepcopy(config)
            less[key] = part
            yield inner, less


def variants(name, config):
    yield from without_each(config)
    old = old_spelling(name, config)
    if old is None:
        return
    for key, less in without_each(old, "old: "):
        if key.removeprefix("old: ").split(".")[0] not in config:
            yield key, less


def load(folder):
    """The model, or none where it is refused or has weights that the files lack."""
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    except Exception as error:  # pylint: disable=broad-except
        return None, repr(error).splitlines()[0][:100]
    if info["missing_keys"] or info["mismatched_keys"]:
        return None, "missing or mismatched"
    return model.eval(), ("unexpected" if info["unexpected_keys"] else "")


def greedy(model, tokens):
    """Ids while one is clearly better than all others."""
    ids = list(tokens)
    with torch.inference_mode():
        for _ in range(NUM_GREEDY):
            best = model(torch.tensor([ids])).logits[0, -1].topk(2)
            if float(best.values[0] - best.values[1]) < MARGIN:
                break
            ids.append(int(best.indices[0]))
    return ids[len(tokens):]


def describe(source, scratch):
    oracle = json.loads((source / "oracle.json").read_text())
    config = json.loads((source / "config.json").read_text())
    folder = pathlib.Path(scratch, source.name)
    shutil.copytree(source, folder)

    def answer(fields):
        (folder / "config.json").write_text(json.dumps(fields))
        model, why = load(folder)
        if model is None:
            return None, why
        try:
            return greedy(model, oracle["tokens"]), why
        except Exception as error:  # pylint: disable=broad-except
            return None, repr(error).splitlines()[0][:100]

    def parsed(fields):
        (folder / "config.json").write_text(json.dumps(fields))
        return {key: value for key, value in
                transformers.AutoConfig.from_pretrained(folder).to_dict().items()
                if key != "transformers_version"}

    expected, why = answer(config)
    assert why == "" and expected == oracle["greedy"][:len(expected)], (source.name, why)
    whole = parsed(config)
    result = {"same": [], "refused": [], "other": {}}
    for key, fields in variants(source.name, config):
        try:
            is_same = parsed(fields) == whole
        except Exception:  # pylint: disable=broad-except
            is_same = False
        ids, why = (expected, "") if is_same else answer(fields)
        if ids is None:
            result["refused"].append(key)
        elif ids == expected:
            result["same"].append(key)
        elif ids:
            result["other"][key] = ids
        if why:
            print(source.name, key, why, "" if ids is None else "runs", file=sys.stderr)
    return result


def main():
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    oracles = {"transformers": transformers.__version__}
    with tempfile.TemporaryDirectory() as scratch:
        for path in sorted(pathlib.Path(sys.argv[1]).glob("*/oracle.json")):
            if path.parent.name == "llama4_text":
                continue
            oracles[path.parent.name] = describe(path.parent, scratch)
    lines = [f" {json.dumps(name)}: {json.dumps(result)}" for name, result in oracles.items()]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Writes last_hidden_states.json: transformers' last_hidden_state of each oracle's first tokens, float32.

    make.py ORACLES OUT

ORACLES is the folder of checkpoints (tests/data/oracles.tar.xz, unpacked).
"""

import json
import pathlib
import sys

import torch
import transformers

NUM_TOKENS = 6


def main(oracles, out):
    torch.set_num_threads(1)
    states = {}
    for folder in sorted(path.parent for path in pathlib.Path(oracles).glob("*/oracle.json")):
        tokens = json.loads((folder / "oracle.json").read_text())["tokens"][:NUM_TOKENS]
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.inference_mode():
            last = model.model(torch.tensor([tokens])).last_hidden_state[0]
        states[folder.name] = {"tokens": tokens,
                               "states": [[float(f"{value:.7g}") for value in row]
                                          for row in last.tolist()]}
    lines = [f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}" for name, one in states.items()]
    pathlib.Path(out).write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

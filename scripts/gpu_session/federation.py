# SPDX-License-Identifier: Apache-2.0
"""A federation of three specialists of 151,936 tokens, by `vitrine bench federation`."""

import json
import sys

from .session import Failed


def run(session):
    facts = session.facts["federation"]
    header = session.find(facts["header"])
    specialists = []
    for seed in (1, 2, 3):
        path = session.scratch / f"specialist-{seed}.gguf"
        done = session.run([sys.executable, session.find("bench/fill_gguf.py"), header, path,
                            "--seed", str(seed)], session.left())
        if done.timed_out or done.code != 0:
            raise Failed(f"the weights: {done.last_line()}")
        specialists.append({"name": f"specialist {seed}", "model": str(path)})
    for kind, weights in (("mixture", [0.5, 0.3, 0.2]), ("product", [1, 1, 1])):
        session.step(kind, lambda kind=kind, weights=weights: bench(session, specialists, kind, weights))
    for specialist in specialists:
        session.scratch.joinpath(specialist["model"]).unlink()


def bench(session, specialists, kind, weights):
    facts = session.facts["federation"]
    path = session.scratch / f"{kind}.json"
    path.write_text(json.dumps({"federation": 1, "combiner": {"kind": kind, "weights": weights},
                                "specialists": specialists}))
    output = session.vitrine("bench", "federation", path, "--tokens", facts["tokens"], "--pairs",
                             facts["pairs"], "--json", *session.facts["devices"]["fused"],
                             seconds=session.left())
    session.keep(**{kind: json.loads(output[output.index("{"):])})

# SPDX-License-Identifier: Apache-2.0
"""What a draft is accepted with at a temperature above 0, by how it is drawn and how the target is.

    draft_noise.py MODEL_FOLDER [--layers N | --draft FOLDER] [--tokens 100] [--texts 20]
                   [--temperature 1] [--seed 1]

Needs PyPI's `torch` and `transformers`. The target generates texts; at each of their positions its
distribution p and the draft's q are computed, and from them, exactly, how often the token that the
target draws is the draft's:

- greedy: the draft is q's best token, accepted with its probability p(token);
- walk by id, walk by rank: both walk the cumulative sum of their candidates up to the same uniform
  number, in the order of ids or of probability;
- Gumbel: both take the best of log-probability plus the same Gumbel noise;
- bound: 1 - TV(p, q), which no way of drawing passes.

The draft is another model of the same vocabulary (--draft), or the target's first layers with its
own norm and head (--layers).
"""

import argparse

import torch
from transformers import AutoModelForCausalLM


def logits_of(model, ids, layers):
    """[positions, vocabulary] behind each token, through all layers or the first `layers`."""
    with torch.no_grad():
        if layers is None:
            return model(ids).logits[0].double()
        states = model(ids, output_hidden_states=True).hidden_states[layers]
        return model.lm_head(model.model.norm(states))[0].double()


def shared_walk(p, q):
    """The length of the parts of [0, 1) in which both walks stop at the same token."""
    end_p, end_q = p.cumsum(-1), q.cumsum(-1)
    shared = torch.minimum(end_p, end_q) - torch.maximum(end_p - p, end_q - q)
    return shared.clamp(min=0).sum(-1)


def ranked_walk(p, q):
    """The length that the walks share, each in its own order of probability."""
    ends, begins = [], []
    for one in (p, q):
        order = torch.argsort(one, dim=-1, descending=True, stable=True)
        end = torch.empty_like(one).scatter_(-1, order, one.gather(-1, order).cumsum(-1))
        ends.append(end)
        begins.append(end - one)
    shared = torch.minimum(*ends) - torch.maximum(*begins)
    return shared.clamp(min=0).sum(-1)


def shared_gumbel(p, q, block=256):
    """sum over i of 1 / sum over j of max(p_j / p_i, q_j / q_i)."""
    total = torch.zeros(p.shape[0], dtype=p.dtype)
    for row in range(p.shape[0]):
        chosen = torch.argsort(torch.minimum(p[row], q[row]), descending=True)[:block]
        for i in chosen.tolist():
            if p[row, i] == 0 or q[row, i] == 0:
                continue
            total[row] += 1 / torch.maximum(p[row] / p[row, i], q[row] / q[row, i]).sum()
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--draft")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if (arguments.draft is None) == (arguments.layers is None):
        parser.error("expected --draft or --layers, one of them")
    torch.manual_seed(arguments.seed)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    draft = model
    if arguments.draft is not None:
        draft = AutoModelForCausalLM.from_pretrained(arguments.draft, dtype=torch.float32).eval()
    begin = model.config.bos_token_id or 0
    sums, positions = {}, 0
    for _ in range(arguments.texts):
        ids = torch.full((1, 1), begin)
        ids = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0,
                             temperature=arguments.temperature, max_new_tokens=arguments.tokens,
                             pad_token_id=begin)
        p = (logits_of(model, ids, None) / arguments.temperature).softmax(-1)
        q = (logits_of(draft, ids, arguments.layers) / arguments.temperature).softmax(-1)
        found = {
            "greedy": p.gather(-1, q.argmax(-1, keepdim=True))[:, 0],
            "walk by id": shared_walk(p, q),
            "walk by rank": ranked_walk(p, q),
            "Gumbel": shared_gumbel(p, q),
            "bound": torch.minimum(p, q).sum(-1),
        }
        positions += p.shape[0]
        for name, values in found.items():
            sums[name] = sums.get(name, 0.0) + values.sum().item()
    print(f"{arguments.model}, draft {arguments.draft or f'of {arguments.layers} layers'}, "
          f"temperature {arguments.temperature}, {positions} positions")
    for name, value in sums.items():
        print(f"  {name:<14}{value / positions:.3f}")


if __name__ == "__main__":
    main()

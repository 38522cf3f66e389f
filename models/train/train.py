# SPDX-License-Identifier: Apache-2.0
"""Trains heads for a model on texts that it wrote (write_texts.py).

    train.py MODEL TEXTS HEADS --kind eagle3|peagle|medusa [--minutes M] [--steps N]

Writes the folder HEADS as it may be loaded, in bfloat16.
"""

import argparse
import json
import math
import pathlib
import time

import torch
from safetensors.torch import load_file, save_file

from eagle import Eagle
from examples import Examples, choose_vocabulary, read_texts
from medusa import Medusa
from target import Target


def layer_sizes(target, arguments):
    own = target.config
    rope = getattr(own, "rope_parameters", None) or {"rope_theta": own.rope_theta}
    return {"model_type": "llama", "hidden_act": "silu", "hidden_size": own.hidden_size,
            "intermediate_size": arguments.intermediate, "num_hidden_layers": 1,
            "num_attention_heads": arguments.heads, "num_key_value_heads": arguments.kv_heads,
            "head_dim": 64, "vocab_size": own.vocab_size, "rms_norm_eps": own.rms_norm_eps,
            "rope_theta": rope["rope_theta"], "attention_bias": False, "mlp_bias": False,
            "max_position_embeddings": own.max_position_embeddings}


def make_heads(target, arguments, vocabulary):
    if arguments.kind == "medusa":
        return Medusa(target, arguments.steps, vocabulary)
    mask = arguments.mask_token if arguments.kind == "peagle" else None
    return Eagle(target, layer_sizes(target, arguments), arguments.layers, vocabulary, mask)


def losses(heads, batch, steps):
    """Yields each step's cross entropy with the model's own probabilities, and how often both have
    the same first choice."""
    rows = batch["ids"].shape[1] - 1 - steps
    for step, logits in enumerate(heads(batch, steps)):
        own = slice(1 + step, 1 + step + rows)
        is_text = batch["is_text"][:, 1 + own.start:1 + own.stop]
        probabilities, places = batch["probabilities"][:, own], batch["places"][:, own]
        guessed = logits.float().log_softmax(-1).gather(-1, places)
        loss = -(probabilities * guessed).sum(-1)
        # Where the model's first choice is none of the draft vocabulary, nothing agrees with it.
        agreed = (logits.argmax(-1) == places[..., 0]) & batch["is_first"][:, own]
        yield loss[is_text].mean(), agreed[is_text].float().mean()


def rate(done, turn, highest):
    """A learning rate that rises for 50 batches, and falls as a cosine to a twentieth."""
    return highest * min(1, (turn + 1) / 50) * (0.05 + 0.475 * (1 + math.cos(math.pi * done)))


def train(heads, examples, arguments):
    """Returns how many tokens were read."""
    optimizer = torch.optim.AdamW(heads.parameters(), weight_decay=0.01, betas=(0.9, 0.95))
    start, tokens, told = time.monotonic(), 0, 0
    for turn, batch in enumerate(examples):
        done = (time.monotonic() - start) / (60 * arguments.minutes)
        if done >= 1:
            return tokens
        for group in optimizer.param_groups:
            group["lr"] = rate(done, turn, arguments.rate)
        with torch.autocast("cpu", torch.bfloat16):
            found = list(losses(heads, batch, arguments.steps))
            total = sum(0.8 ** step * loss for step, (loss, _) in enumerate(found))
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
        optimizer.step()
        tokens += int(batch["is_text"].sum())
        if done >= told:
            told += 0.05
            print(f"{100 * done:3.0f} %, {tokens} tokens, loss",
                  " ".join(f"{loss:.3f}" for loss, _ in found), "agreed",
                  " ".join(f"{agreed:.3f}" for _, agreed in found), flush=True)
    return tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="folder of the model, or a .gguf file")
    parser.add_argument("texts", type=pathlib.Path, help="what write_texts.py wrote")
    parser.add_argument("folder", type=pathlib.Path, help="the new heads")
    parser.add_argument("--kind", choices=("eagle3", "peagle", "medusa"), default="eagle3")
    parser.add_argument("--minutes", type=float, default=20, help="of training")
    parser.add_argument("--reading-minutes", type=float, default=5, help="of the model's pass before")
    parser.add_argument("--steps", type=int, default=5,
                        help="guesses to train for; 1: EAGLE-3 without training-time test")
    parser.add_argument("--layers", type=lambda text: [int(part) for part in text.split(",")],
                        default=[2, 4], help="whose input is read, with commas")
    parser.add_argument("--draft-vocabulary", type=int, default=640)
    parser.add_argument("--intermediate", type=int, default=256)
    parser.add_argument("--heads", type=int, default=2, help="attention's, of 64 elements")
    parser.add_argument("--kv-heads", type=int, default=1)
    parser.add_argument("--mask-token", type=int, default=0, help="P-EAGLE's, of the model's tokens")
    parser.add_argument("--begin-with", type=pathlib.Path,
                        help="a folder of EAGLE-3 or P-EAGLE heads, of the same sizes, to go on from")
    parser.add_argument("--texts-a-batch", type=int, default=4)
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    target = Target(arguments.model)
    texts = read_texts(arguments.texts)
    begin = None
    if arguments.begin_with is not None:
        begin = load_file(arguments.begin_with / "model.safetensors")
        vocabulary = begin["d2t"] + torch.arange(len(begin["d2t"]))
    else:
        vocabulary, share = choose_vocabulary(texts, arguments.draft_vocabulary)
        print(f"{len(vocabulary)} draft tokens, {100 * share:.1f} % of the text", flush=True)
    if arguments.kind == "medusa":
        arguments.layers = [target.config.num_hidden_layers]
    with torch.autocast("cpu", torch.bfloat16):
        examples = Examples(target, texts, arguments.layers, vocabulary, arguments.texts_a_batch,
                            arguments.reading_minutes)
    print(f"{examples.tokens} tokens were read", flush=True)
    heads = make_heads(target, arguments, vocabulary)
    if begin is not None:
        heads.begin_as(begin)
    tokens = train(heads, examples, arguments)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    (arguments.folder / "config.json").write_text(
        json.dumps(heads.config(arguments.steps), indent=2) + "\n")
    save_file(heads.tensors(), arguments.folder / "model.safetensors", {"format": "pt"})
    (arguments.folder / "model.safetensors").chmod(0o644)
    print(f"{arguments.folder}: heads that were trained on {tokens} tokens")


if __name__ == "__main__":
    main()

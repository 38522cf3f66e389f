# SPDX-License-Identifier: Apache-2.0
"""Medusa (Cai et al., arXiv 2401.10774): each head guesses one of the next tokens from the model's
last state, and knows of no other head."""

import torch
from torch import nn
from torch.nn.functional import linear, silu


class Medusa(nn.Module):
    def __init__(self, target, heads, vocabulary):
        super().__init__()
        self.model_norm, self.vocabulary = target.norm, vocabulary
        hidden = target.config.hidden_size
        self.vocabulary_size, self.hidden_size = len(target.head), hidden
        # A head begins as the model's own.
        self.blocks = nn.ParameterList([torch.zeros(hidden, hidden) for _ in range(heads)])
        self.heads = nn.ParameterList([target.head[vocabulary].clone() for _ in range(heads)])
        for parameter in self.model_norm.parameters():
            parameter.requires_grad_(False)

    def forward(self, batch, steps):
        """Yields each head's logits as Eagle.forward does: row p of head h is of the token p + 2 + h."""
        rows = batch["ids"].shape[1] - 1 - steps
        states = self.model_norm(batch["features"][:, :rows].float())
        for block, head in zip(self.blocks, self.heads):
            yield linear(states + silu(linear(states, block)), head)

    def tensors(self):
        """By the names that vLLM reads."""
        stored = {"token_map": self.vocabulary}
        for index, (block, head) in enumerate(zip(self.blocks, self.heads)):
            stored[f"blocks.{index}.layers.0.weight"] = block.detach().bfloat16()
            stored[f"lm_heads.{index}.weight"] = head.detach().bfloat16()
        return stored

    def config(self, _):
        return {"model_type": "medusa", "architectures": ["MedusaModel"], "num_hidden_layers": 1,
                "num_heads": len(self.blocks), "hidden_size": self.hidden_size,
                "vocab_size": self.vocabulary_size, "truncated_vocab_size": len(self.vocabulary),
                "torch_dtype": "bfloat16"}

# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/gptq.json: what llm-compressor's GPTQ makes of matrices and Hessians.

    make_gptq_fixture.py [OUT]

Needs PyPI's llmcompressor 0.14.0.1. Each case has the weights and
inputs (bfloat16's bits; the Hessian is the sum of their products, rounded once), the scales and zero points that it was given, and the numbers that it chose.
"""

import json
import pathlib
import sys

import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.utils import calculate_qparams
from llmcompressor.modifiers.gptq.gptq_quantize import quantize_weight

ROWS, COLS, INPUTS = 16, 64, 72


def bits(tensor):
    return tensor.contiguous().view(torch.int16).flatten().tolist()


def make_case(seed, num_bits, group, symmetric, actorder, dead):
    random = torch.Generator().manual_seed(seed)
    weights = torch.randn(ROWS, COLS, generator=random).to(torch.bfloat16)
    mixing = torch.randn(COLS, COLS, generator=random)
    inputs = torch.randn(INPUTS, COLS, generator=random) @ mixing + 0.3
    inputs = (inputs * torch.rand(COLS, generator=random) * 3).to(torch.bfloat16)
    for column in dead:
        inputs[:, column] = 0
    wide = inputs.double()
    hessian = (wide.T @ wide).float()
    arguments = QuantizationArgs(num_bits=num_bits, type="int", symmetric=symmetric,
                                 strategy="group", group_size=group, actorder=actorder)
    grouped = weights.reshape(ROWS, COLS // group, group)
    scale, zero = calculate_qparams(grouped.amin(-1), grouped.amax(-1), arguments)
    # Scales of bfloat16 would round what numbers stand for, which no engine does.
    values, loss, fallback = quantize_weight(
        weights.unsqueeze(0).float(), hessian.unsqueeze(0).clone(), scale.unsqueeze(0).float(),
        zero.unsqueeze(0), None, arguments, percdamp=0.01)
    assert not fallback.any()
    each = scale.float().repeat_interleave(group, 1)
    numbers = (values[0].float() / each).round() + zero.float().repeat_interleave(group, 1)
    return {"bits": num_bits, "group": group, "symmetric": symmetric, "rows": ROWS, "cols": COLS,
            "sorts_columns": actorder is not None, "weights": bits(weights),
            "inputs": bits(inputs), "scales": bits(scale.to(torch.bfloat16)),
            "zero_points": zero.to(torch.int32).flatten().tolist(),
            "numbers": numbers.to(torch.int32).flatten().tolist(), "loss": float(loss[0])}


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                       pathlib.Path(__file__).parents[1] / "data" / "gptq.json")
    cases = [make_case(1, 4, 32, True, "weight", []), make_case(2, 3, 32, False, "weight", [5]),
             make_case(3, 4, 64, True, None, []), make_case(4, 8, 32, False, "weight", [0, 63])]
    out.write_text(json.dumps(cases, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

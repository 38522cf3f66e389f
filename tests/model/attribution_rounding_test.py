# SPDX-License-Identifier: Apache-2.0
"""What the term `rounding` of a logit consists of on the quantized path, computed here from the
vectors that the run had and the checkpoint's quantized head, read by others' code.

    attribution_rounding_test.py ATTRIBUTION_VECTORS MODEL [unittest arguments]

rounding = logit - sum of the terms. Here, in float64:

    head      the head's row times its input as rounded to int8, less the same times the input
              itself: what quantizing the head's input changes
    residual  the final stream times the direction, less the terms of the parts that it was added up
              from: what adding in float32 changes
    rest      what the two leave: float32 in the dot products, the norm and the head's sum

Ends with 77 (skipped) where the oracle packages are not installed.
"""

import os
import subprocess
import sys
import unittest

try:
    import numpy
    import torch
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from safetensors import safe_open
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PROGRAM, MODEL = (os.path.abspath(path) for path in sys.argv[1:3])
PROMPT = [0, 3, 263, 300, 82, 270, 310]
TOKENS = 220
EPS = 1e-6


class Run:
    """The run's vectors; every row a token."""

    def __init__(self):
        data = subprocess.run([PROGRAM, MODEL, " ".join(map(str, PROMPT)), str(TOKENS)], check=True,
                              capture_output=True, timeout=300).stdout
        hidden, vectors, terms = numpy.frombuffer(data, "<i4", 3)
        row = numpy.dtype([("ids", "<i4", 2), ("logits", "<f4", (2, 2)), ("terms", "<f4", (2, terms)),
                           ("stream", "<f4", hidden), ("head_input", "<f4", hidden),
                           ("kept", "<f4", (vectors, hidden)), ("weights", "<f4", vectors)])
        self.rows = numpy.frombuffer(data[12:], row)
        self.vectors = int(vectors)


class Head:
    """lm_head and the final norm's weight, by compressed-tensors and safetensors."""

    def __init__(self):
        with safe_open(os.path.join(MODEL, "model.safetensors"), "pt") as file:
            shape = torch.Size(file.get_tensor("lm_head.weight_shape").tolist())
            packed = file.get_tensor("lm_head.weight_packed")
            self.values = unpack_from_int32(packed, 8, shape).numpy().astype(numpy.int64)
            self.scales = file.get_tensor("lm_head.weight_scale").double().numpy()
            self.norm = file.get_tensor("model.norm.weight").double().numpy()
        self.group = self.values.shape[1] // self.scales.shape[1]
        self.weights = self.values * numpy.repeat(self.scales, self.group, axis=1)


def quantize(values, group):
    """int8 with a scale for each group: 127 is the largest magnitude; to the nearest, ties to even,
    in float32."""
    grouped = values.reshape(-1, group)
    largest = numpy.abs(grouped).max(axis=1)
    factor = numpy.float32(127) / largest
    rounded = numpy.rint(grouped * factor[:, None])
    return rounded.astype(numpy.int64), (largest / numpy.float32(127)).astype(numpy.float64)


def split(run, head):
    """[token and side]: rounding as logged, head, residual, largest term."""
    found = []
    for row in run.rows:
        stream = row["stream"].astype(numpy.float64)
        kept, weights = row["kept"].astype(numpy.float64), row["weights"].astype(numpy.float64)
        scale = 1 / numpy.sqrt(numpy.mean(stream * stream) + EPS)
        head_input = row["head_input"]
        numpy.testing.assert_allclose(head_input, stream * head.norm * scale, rtol=2e-6)
        ints, scales = quantize(head_input, head.group)
        for side, token in enumerate(row["ids"]):
            weight_ints = head.values[token].reshape(-1, head.group)
            integer_dots = (weight_ints * ints).sum(axis=1)
            quantized = (integer_dots * head.scales[token] * scales).sum()
            exact = head.weights[token] @ head_input.astype(numpy.float64)
            # The terms again, from the vectors: a stream's less what stood before it, or a weighted
            # expert.
            direction = head.weights[token] * head.norm * scale
            dots = kept @ direction
            terms, before = [dots[0]], dots[0]
            for at in range(1, run.vectors, 3):
                routed = dots[at + 1:at + 3] * weights[at + 1:at + 3]
                terms += [dots[at] - before, *routed]
                before = dots[at] + routed.sum()
            logged = row["terms"][side]
            largest = numpy.abs(row["terms"]).max()
            numpy.testing.assert_allclose(logged, terms, atol=1e-5 * largest)
            found.append((row["logits"][side][1], quantized - exact, stream @ direction - sum(terms), largest))
    return numpy.array(found, numpy.float64)


def spread(values):
    values = numpy.abs(values)
    return "median {:.2e}, 95 % {:.2e}, max {:.2e}".format(
        *numpy.quantile(values, (0.5, 0.95)), values.max())


class Rounding(unittest.TestCase):
    def test_it_is_the_quantization_of_the_heads_input(self):
        run, head = Run(), Head()
        self.assertEqual(len(run.rows), TOKENS)
        self.assertEqual((run.vectors - 1) % 3, 0, "attention and two experts a layer")
        rounding, quantization, residual, largest = split(run, head).T
        rest = rounding - quantization - residual
        print(f"\n{len(run.rows)} tokens, each with its runner-up; relative to the largest term")
        for name, values in (("rounding", rounding), ("head's input to int8", quantization),
                             ("residual in float32", residual), ("what is left", rest)):
            print(f"  {name:21} {spread(values / largest)}")
        # Token by token.
        self.assertLess(numpy.abs(rest / largest).max(), 5e-6)
        self.assertLess(numpy.abs(residual / largest).max(), 5e-6)
        # The test can fail: without the head's part nothing is explained.
        self.assertGreater(numpy.median(numpy.abs(rounding / largest)),
                           100 * numpy.abs(rest / largest).max())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)

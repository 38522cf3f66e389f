// SPDX-License-Identifier: Apache-2.0
// short_convolution: a gate, a causal convolution of each channel, another gate.
#include <vector>

#include "backend_torch/torch_op.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

void reference_short_convolution(ReferenceStep& step, const ops::OpNode& node) {
  const auto& own = node.as<ops::ShortConvolutionParameters>();
  const int64_t width = step.graph->width(node.outputs[0]);
  const std::vector<at::Tensor> parts =
      step.input(node, 0).split_with_sizes({width, width, width}, -1);  // b, c, x
  const at::Tensor gated = parts[0].mul(parts[2]);
  const at::Tensor taps =
      step.weights->vector(own.weight, width * own.taps).view({width, own.taps});
  ReferenceStates& states = (*step.states)[static_cast<size_t>(node.layer)];
  std::vector<at::Tensor> outputs;
  for (const ReferenceSpan& span : step.spans) {
    const int64_t count = span.num_tokens;
    const at::Tensor inputs =
        at::cat({states.inputs.select(0, span.state), gated.narrow(0, span.first_token, count)}, 0);
    at::Tensor sum = at::zeros({count, width}, inputs.options());
    for (int64_t tap = 0; tap < own.taps; ++tap) {
      sum = sum.add(inputs.narrow(0, tap, count).mul(taps.select(1, tap)));
    }
    states.inputs.select(0, span.state).copy_(inputs.narrow(0, count, own.taps - 1));
    outputs.push_back(sum);
  }
  at::Tensor convolved = at::cat(outputs, 0);
  if (!own.bias.empty()) convolved = convolved.add(step.weights->vector(own.bias, width));
  step.value(node.outputs[0]) = parts[1].mul(convolved);
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"short_convolution", reference_short_convolution}));

}  // namespace
}  // namespace vitrine::backend_torch

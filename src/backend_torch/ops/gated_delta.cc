// SPDX-License-Identifier: Apache-2.0
// gated_delta: a causal convolution of each channel, then the gated delta rule token by token, and
// a norm that is gated.
#include <cmath>
#include <tuple>
#include <vector>

#include "backend_torch/heads.h"
#include "backend_torch/torch_op.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

/// What the projections gave, by head.
struct DeltaInputs {
  at::Tensor channels;  // [tokens, channels] queries, keys, values
  at::Tensor gate;      // [tokens, value_heads, value_dim]
  at::Tensor a, b;      // [tokens, value_heads]
};

DeltaInputs split(ReferenceStep& step, const ops::OpNode& node,
                  const ops::GatedDeltaParameters& own) {
  const ops::GatedDeltaShape& shape = own.shape;
  const int64_t tokens = step.token_ids.size(0), heads = shape.value_heads;
  const int64_t of_key = shape.values_of_key(), values = of_key * shape.value_dim;
  DeltaInputs in;
  size_t next = 0;  // input
  in.channels = step.input(node, next++);
  if (own.is_grouped) {
    const std::vector<at::Tensor> parts =
        in.channels.view({tokens, shape.key_heads, 2 * shape.key_dim + 2 * values})
            .split_with_sizes({shape.key_dim, shape.key_dim, values, values}, -1);
    in.channels = at::cat({parts[0].flatten(1), parts[1].flatten(1), parts[2].flatten(1)}, -1);
    in.gate = parts[3].reshape({tokens, heads, shape.value_dim});
  } else {
    in.gate = step.input(node, next++).view({tokens, heads, shape.value_dim});
  }
  if (own.groups_strengths) {
    const std::vector<at::Tensor> parts = step.input(node, next)
                                              .view({tokens, shape.key_heads, 2 * of_key})
                                              .split_with_sizes({of_key, of_key}, -1);
    in.b = parts[0].reshape({tokens, heads});
    in.a = parts[1].reshape({tokens, heads});
  } else {
    in.b = step.input(node, next++);
    in.a = step.input(node, next);
  }
  return in;
}

at::Tensor l2_norm(const at::Tensor& x) {
  return x.mul(x.mul(x).sum(-1, /*keepdim=*/true).add(1e-6).rsqrt());
}

/// Heads of keys or queries as often as values use them.
at::Tensor spread(const at::Tensor& x, const ops::GatedDeltaParameters& own) {
  const ops::GatedDeltaShape& shape = own.shape;
  const at::Tensor heads = l2_norm(x.unflatten(-1, {shape.key_heads, shape.key_dim}));
  return own.is_tiled ? heads.repeat({1, shape.values_of_key(), 1})
                      : heads.repeat_interleave(shape.values_of_key(), 1);
}

at::Tensor log_one_plus_exp(const at::Tensor& x) {
  return x.clamp_min(0).add(x.abs().neg().exp().log1p());
}

void reference_gated_delta(ReferenceStep& step, const ops::OpNode& node) {
  const auto& own = node.as<ops::GatedDeltaParameters>();
  const ops::GatedDeltaShape& shape = own.shape;
  const DeltaInputs in = split(step, node, own);
  const at::Tensor taps = step.weights->vector(own.convolution, shape.channels() * shape.taps)
                              .view({shape.channels(), shape.taps});
  const at::Tensor& rate = step.weights->vector(own.rate, shape.value_heads);
  const at::Tensor bias = step.weights->vector(own.bias, shape.value_heads);
  const at::Tensor decay = log_one_plus_exp(in.a.add(bias)).mul(rate).exp();
  const at::Tensor beta = in.b.sigmoid();
  ReferenceStates& states = (*step.states)[static_cast<size_t>(node.layer)];
  std::vector<at::Tensor> outputs;
  for (const ReferenceSpan& span : step.spans) {
    const int64_t count = span.num_tokens;
    const at::Tensor inputs = at::cat(
        {states.inputs.select(0, span.state), in.channels.narrow(0, span.first_token, count)}, 0);
    at::Tensor convolved = at::zeros({count, shape.channels()}, inputs.options());
    for (int64_t tap = 0; tap < shape.taps; ++tap) {
      convolved = convolved.add(inputs.narrow(0, tap, count).mul(taps.select(1, tap)));
    }
    states.inputs.select(0, span.state).copy_(inputs.narrow(0, count, shape.taps - 1));
    convolved = convolved.mul(convolved.sigmoid());
    const int64_t keys = shape.key_heads * shape.key_dim;
    const at::Tensor query = spread(convolved.narrow(1, 0, keys), own)
                                 .div(std::sqrt(static_cast<double>(shape.key_dim)));
    const at::Tensor key = spread(convolved.narrow(1, keys, keys), own);
    const at::Tensor value = convolved.narrow(1, 2 * keys, shape.value_heads * shape.value_dim)
                                 .unflatten(-1, {shape.value_heads, shape.value_dim});
    at::Tensor rule = states.rule.select(0, span.state);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = span.first_token + i;
      const at::Tensor k = key.select(0, i).unsqueeze(-1);  // [value_heads, key_dim, 1]
      rule = rule.mul(decay.select(0, token).view({-1, 1, 1}));
      const at::Tensor delta =
          value.select(0, i).sub(rule.mul(k).sum(1)).mul(beta.select(0, token).unsqueeze(-1));
      rule = rule.add(k.mul(delta.unsqueeze(1)));
      outputs.push_back(rule.mul(query.select(0, i).unsqueeze(-1)).sum(1));
    }
    states.rule.select(0, span.state).copy_(rule);
  }
  const at::Tensor& norm = step.weights->vector(own.norm, shape.value_dim);
  const at::Tensor normed = norm_rows(at::stack(outputs, 0), norm, own.eps);
  step.value(node.outputs[0]) = normed.mul(in.gate.mul(in.gate.sigmoid())).flatten(1);
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"gated_delta", reference_gated_delta}));

}  // namespace
}  // namespace vitrine::backend_torch

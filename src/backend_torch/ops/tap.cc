// SPDX-License-Identifier: Apache-2.0
// tap: brings rows to the host, for whoever reads or adds them.
#include <vector>

#include "backend_torch/readback.h"
#include "backend_torch/torch_op.h"
#include "ops/taps.h"

namespace vitrine::backend_torch {
namespace {

at::Tensor rows_of(ReferenceStep& step, const ops::TapParameters& tap) {
  const auto kept = step.own_rows.find(tap.rows);
  return kept != step.own_rows.end() ? kept->second : step.value(tap.value);
}

std::vector<float> to_host(const ReferenceStep& step, const at::Tensor& values) {
  const at::Tensor flat = values.reshape({-1}).to(at::kFloat).contiguous();
  std::vector<float> host(static_cast<size_t>(flat.numel()));
  read_back(*step.readback, host.data(), flat, flat.numel());
  return host;
}

void reference_tap(ReferenceStep& step, const ops::OpNode& node) {
  if (step.taps == nullptr) return;  // the first pass, which loads the weights
  const auto& tap = node.as<ops::TapParameters>();
  const std::vector<float> rows = to_host(step, rows_of(step, tap));
  std::vector<int32_t> experts;
  std::vector<float> weights;
  if (tap.experts > 0) {  // float32 holds their ids exactly
    const std::vector<float> ids = to_host(step, step.routes_ids[static_cast<size_t>(node.layer)]);
    experts.assign(ids.begin(), ids.end());
    weights = to_host(step, step.routes_weights[static_cast<size_t>(node.layer)]);
  }
  const ops::TapPass pass{rows.data(),
                          step.token_ids.size(0),
                          step.host_token_ids,
                          step.host_positions,
                          experts.empty() ? nullptr : experts.data(),
                          weights.empty() ? nullptr : weights.data()};
  step.taps->begin(tap, pass);
  for (int64_t tile = 0; tile < step.taps->num_tiles(tap); ++tile) {
    step.taps->add(tap, pass, tile);
  }
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"tap", reference_tap}));

}  // namespace
}  // namespace vitrine::backend_torch

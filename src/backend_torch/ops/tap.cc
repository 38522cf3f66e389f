// SPDX-License-Identifier: Apache-2.0
// tap: brings rows to the host, for whoever reads or adds them.
#include <vector>

#include "backend_torch/torch_op.h"
#include "ops/taps.h"

namespace vitrine::backend_torch {
namespace {

at::Tensor rows_of(ReferenceStep& step, const ops::TapParameters& tap) {
  const auto kept = step.own_rows.find(tap.rows);
  return kept != step.own_rows.end() ? kept->second : step.value(tap.value);
}

std::vector<int32_t> to_host(const at::Tensor& ids) {
  const at::Tensor host = ids.reshape({-1}).to(at::kInt).to(at::kCPU).contiguous();
  const int32_t* data = host.const_data_ptr<int32_t>();
  return {data, data + host.numel()};
}

void reference_tap(ReferenceStep& step, const ops::OpNode& node) {
  if (step.taps == nullptr) return;  // the first pass, which loads the weights
  const auto& tap = node.as<ops::TapParameters>();
  const at::Tensor rows = rows_of(step, tap).to(at::kFloat).to(at::kCPU).contiguous();
  const std::vector<int32_t> tokens = to_host(step.token_ids), positions = to_host(step.positions);
  std::vector<int32_t> experts;
  if (tap.experts > 0) experts = to_host(step.routes_ids[static_cast<size_t>(node.layer)]);
  const ops::TapPass pass{rows.const_data_ptr<float>(), step.token_ids.size(0), tokens.data(),
                          positions.data(), experts.empty() ? nullptr : experts.data()};
  step.taps->begin(tap, pass);
  for (int64_t tile = 0; tile < step.taps->num_tiles(tap); ++tile) {
    step.taps->add(tap, pass, tile);
  }
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"tap", reference_tap}));

}  // namespace
}  // namespace vitrine::backend_torch

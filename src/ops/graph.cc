// SPDX-License-Identifier: Apache-2.0
// What a graph says of itself: with attribution_graph.cc all that a backend needs of this room.
#include "ops/graph.h"

#include <algorithm>

#include "kernels/cpu/blocks/list.h"
#include "ops/adapters.h"
#include "ops/plan.h"

namespace vitrine::ops {

using kernels::Weight;
using kernels::WeightFormat;

void OpNode::refuse_parameters(std::string_view expected) const {
  const std::string_view found = parameters->kind();
  throw Error(ErrorKind::kInternal,
              "op '" + type + "' was made with " +
                  (found.empty() ? "no parameters" : "those of '" + std::string(found) + "'") +
                  "; expected parameters of '" + std::string(expected) + "'");
}

namespace {

std::string packed_kernel_name(const Weight& weight) {
  switch (weight.format) {
    case WeightFormat::kF32: return "linear_f32";
    case WeightFormat::kF16: return "linear_f16";
    case WeightFormat::kBF16: return "linear_bf16";
    case WeightFormat::kE4M3: return "linear_e4m3";
    case WeightFormat::kQ2K: return "linear_q2k";
    case WeightFormat::kQ4K: return "linear_q4k";
    case WeightFormat::kQ6K: return "linear_q6k";
    case WeightFormat::kMxfp4: return "linear_mxfp4";
    case WeightFormat::kBlocks:  // without the kernels, which not every backend has
      return std::string("linear_") + kernels::blocks::find_shape(weight.block_format).name;
    case WeightFormat::kInt8:
    case WeightFormat::kInt4:
    case WeightFormat::kInt3: break;
  }
  std::string name = weight.format == WeightFormat::kInt8   ? "linear_int8g"
                     : weight.format == WeightFormat::kInt4 ? "linear_int4g"
                                                            : "linear_int3g";
  name += std::to_string(weight.group_size);
  if (weight.offset_format == kernels::OffsetFormat::kNone) return name;
  return name + (weight.offset_format == kernels::OffsetFormat::kZeroPoint ? "z" : "m");
}

}  // namespace

std::string weight_kernel_name(const Weight& weight) {
  return packed_kernel_name(weight) + (weight.blocks != nullptr ? "_mapped" : "");
}

std::vector<size_t> layer_begins(const Graph& graph) {
  std::vector<size_t> begins(static_cast<size_t>(graph.num_layers) + 1, 0);
  size_t end = 0;  // behind the last node of a layer
  for (size_t node = graph.nodes.size(); node-- > 0;) {
    const int layer = graph.nodes[node].layer;
    if (layer < 0) continue;
    begins[static_cast<size_t>(layer)] = node;
    end = std::max(end, node + 1);
  }
  begins.back() = end;
  return begins;
}

}  // namespace vitrine::ops

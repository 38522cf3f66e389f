// SPDX-License-Identifier: Apache-2.0
// Loaded matrices get other numbers between two steps.
#include <cstring>

#include "core/half_float.h"
#include "model/weights.h"

namespace vitrine::model {

namespace {

std::string format_text(const kernels::Weight& weight) {
  using Format = kernels::WeightFormat;
  switch (weight.format) {
    case Format::kF32: return "F32";
    case Format::kF16: return "F16";
    case Format::kBF16: return "BF16";
    default: break;
  }
  return "quantized numbers (format " + std::to_string(static_cast<int>(weight.format)) +
         ", groups of " + std::to_string(weight.group_size) + ", scales " +
         std::to_string(static_cast<int>(weight.scale_format)) + ", offsets " +
         std::to_string(static_cast<int>(weight.offset_format)) + ")";
}

bool has_format_of(const kernels::Weight& a, const kernels::Weight& b) {
  return a.format == b.format && a.scale_format == b.scale_format &&
         a.offset_format == b.offset_format && a.tiled == b.tiled && a.group_size == b.group_size;
}

// The memory is the weights' own, whose handle shows it as constant.
void overwrite(const void* target, const void* source, size_t size) {
  if (size > 0) std::memcpy(const_cast<void*>(target), source, size);
}

}  // namespace

const kernels::Weight& CheckpointWeights::find_replaceable(const std::string& module) const {
  const auto found = matrices_.find(module);
  if (ordered_.contains(module)) {
    throw Error(
        ErrorKind::kUnsupported,
        "matrix '" + module +
            "' has its columns or rows in another order than its file (act-order), and "
            "stays as it was loaded; expected a folder whose columns stand in order (no g_idx "
            "or q_invperm)");
  }
  if (found == matrices_.end() && caches_experts_) {
    throw Error(ErrorKind::kUnsupported,
                "matrix '" + module +
                    "' is none that stays in memory; expected an engine without "
                    "expert_cache_bytes, and a module's name without '.weight'");
  }
  if (found == matrices_.end()) {
    throw Error(ErrorKind::kInvalidArgument,
                checkpoint_.path() + ": no op multiplies with a matrix '" + module +
                    "' that could be replaced; expected a module's name without '.weight', as "
                    "model.layers.0.mlp.up_proj (not the kv_b_proj of latent attention)");
  }
  if (found->second.blocks != nullptr) {
    throw Error(
        ErrorKind::kUnsupported,
        "matrix '" + module +
            "' stands in the mapped file, and is none of floats; expected an engine without "
            "mmap_weights");
  }
  return found->second;
}

void* CheckpointWeights::writable_floats(const std::string& module) {
  kernels::Weight& weight = matrices_.at(module);
  const auto mapped = mapped_floats_.find(module);
  if (mapped != mapped_floats_.end() && !mapped->second.instead) {
    const size_t bytes = kernels::packed_bytes(weight).data;
    weight.data = mapped->second.instead.emplace(bytes, "tensor '" + module + "'").data();
    kv::MappedMemory::drop_whole_pages(mapped->second.data, bytes);
  }
  return const_cast<void*>(weight.data);
}

void CheckpointWeights::restore(const std::string& module) {
  find_replaceable(module);
  const auto mapped = mapped_floats_.find(module);
  if (mapped == mapped_floats_.end()) return replace(module, checkpoint_);
  kernels::Weight& weight = matrices_.at(module);
  weight.data = mapped->second.data;
  mapped->second.instead.reset();
  kv::MappedMemory::drop_whole_pages(mapped->second.data, kernels::packed_bytes(weight).data);
}

void CheckpointWeights::replace(const std::string& module, const Checkpoint& from) {
  const kernels::Weight& now = find_replaceable(module);
  StoredMatrix stored = find_stored_matrix(from, module, now.rows, now.cols);
  if (!has_format_of(stored.weight, now)) {
    throw Error(ErrorKind::kInvalidArgument, from.path() + ": matrix '" + module + "' has " +
                                                 format_text(stored.weight) + "; expected " +
                                                 format_text(now) + ", as it was loaded");
  }
  const auto used = row_scales_.find(module);
  if (used != row_scales_.end() && used->second != stored.row_scale) {
    throw Error(ErrorKind::kInvalidArgument,
                from.path() + ": matrix '" + module +
                    "' asks for another scale of activations than " + checkpoint_.path() +
                    " did; expected the same input_activations and input_scale");
  }
  WeightMemory memory;  // so that a file that cannot be read leaves the matrix as it was
  stored.place(memory.allocate(stored.num_bytes(), "tensor '" + module + "'"));
  std::vector<std::byte> buffer;
  read_stored_rows(kernel_, from, stored, 0, now.rows, buffer);
  overwrite(mapped_floats_.contains(module) ? writable_floats(module) : now.data, stored.data,
            stored.bytes.data);
  overwrite(now.scales, stored.scales, stored.bytes.scales);
  overwrite(now.offsets, stored.offsets, stored.bytes.offsets);
}

void CheckpointWeights::replace(const std::string& module, std::span<const float> values) {
  const kernels::Weight& now = find_replaceable(module);
  if (values.size() != static_cast<size_t>(now.rows * now.cols)) {
    throw Error(ErrorKind::kInvalidArgument, "matrix '" + module + "' is replaced by " +
                                                 std::to_string(values.size()) +
                                                 " numbers; expected " + std::to_string(now.rows) +
                                                 " rows of " + std::to_string(now.cols));
  }
  using Format = kernels::WeightFormat;
  if (now.format != Format::kF32 && now.format != Format::kF16 && now.format != Format::kBF16) {
    throw Error(ErrorKind::kInvalidArgument,
                "matrix '" + module + "' has " + format_text(now) +
                    ", which floats do not become; expected a checkpoint that has it so");
  }
  void* const target = writable_floats(module);
  if (now.format == Format::kF32) return overwrite(target, values.data(), values.size_bytes());
  auto* const halves = static_cast<uint16_t*>(target);
  const bool is_bfloat16 = now.format == Format::kBF16;
  for (size_t i = 0; i < values.size(); ++i) {
    halves[i] = is_bfloat16 ? to_bfloat16(values[i]) : to_half(values[i]);
  }
}

}  // namespace vitrine::model

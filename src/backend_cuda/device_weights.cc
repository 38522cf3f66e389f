// SPDX-License-Identifier: Apache-2.0
#include "backend_cuda/device_weights.h"

#include <algorithm>

#include "core/run_pieces.h"
#include "ops/weight_lines.h"

namespace vitrine::backend_cuda {

using kernels::Weight;
using kernels::WeightFormat;
using kernels::cuda::ActivationFormat;
using kernels::cuda::EmbeddingTable;
using kernels::cuda::FloatFormat;

namespace {

// What is packed, or widened, and copied at once, where it is not one matrix.
constexpr size_t kStagingBytes = size_t{64} << 20;

FloatFormat float_format(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF16: return FloatFormat::kF16;
    case WeightFormat::kBF16: return FloatFormat::kBF16;
    case WeightFormat::kE4M3: return FloatFormat::kE4M3;
    default: return FloatFormat::kF32;
  }
}

bool same_format(const Weight& a, const Weight& b) {
  return a.format == b.format && a.scale_format == b.scale_format &&
         a.offset_format == b.offset_format && a.group_size == b.group_size && a.cols == b.cols;
}

/// Bytes of a matrix, without the scales that stand behind floats.
size_t device_bytes(const Weight& weight, bool is_packed) {
  return is_packed ? static_cast<size_t>(kernels::cuda::packed_layout(weight).bytes())
                   : static_cast<size_t>(weight.rows * weight.cols *
                                         kernels::element_bytes(weight.format));
}

size_t scale_bytes(const Weight& weight, bool is_packed) {
  return is_packed || weight.format != WeightFormat::kE4M3 ? 0
                                                           : kernels::packed_bytes(weight).scales;
}

}  // namespace

DeviceWeights::DeviceWeights(DeviceRuntime& runtime, const engine::DeviceModelInputs& inputs)
    : runtime_(runtime),
      kernel_(inputs.kernel),
      host_(inputs.weights),
      weights_read_(inputs.weights_read),
      threads_(inputs.options.threads),
      activation_dtype_(inputs.options.activation_dtype) {
  if (activation_dtype_ != DType::kF8E4M3) return;
  int capability = 0;  // ten times the major number, and the minor one
  check(runtime_.compute_capability(&capability), "asking for the compute capability");
  if (capability >= 89) return;
  throw Error(ErrorKind::kUnsupported,
              "engine option 'activation_dtype' is F8_E4M3, which needs a GPU of compute "
              "capability 8.9 or above; this one has " +
                  std::to_string(capability / 10) + "." + std::to_string(capability % 10) +
                  "; use bf16");
}

std::byte* DeviceWeights::reserve(size_t bytes, const std::string& what) {
  num_bytes_ += bytes;
  if (!weights_read_) return nullptr;
  return memory_.emplace_back(runtime_, bytes, what).data();
}

bool DeviceWeights::packs(const Weight& weight, Precision precision) const {
  if (!kernels::is_float_format(weight.format)) return true;
  return activation_dtype_ != DType::kI8 && precision == Precision::kAsAsked &&
         (weight.format == WeightFormat::kBF16 || weight.format == WeightFormat::kE4M3);
}

ActivationFormat DeviceWeights::activations(const Weight& weight, Precision precision) const {
  const bool rounds = activation_dtype_ != DType::kI8 && precision == Precision::kAsAsked;
  if (!rounds || kernels::cuda::has_parts(kernels::cuda::packed_layout(weight).kind)) {
    return ActivationFormat::kInt8;
  }
  const bool is_e4m3 = weight.format == WeightFormat::kE4M3;
  return is_e4m3 && activation_dtype_ == DType::kF8E4M3 ? ActivationFormat::kE4M3
                                                        : ActivationFormat::kBF16;
}

const DeviceMatrix& DeviceWeights::place(const std::vector<const Weight*>& weights,
                                         const std::string& what, bool stacked,
                                         Precision precision) {
  Weight first = *weights[0];
  if (first.format == WeightFormat::kBlocks && first.block_format == kernels::BlockFormat::kNvfp4) {
    throw Error(ErrorKind::kUnsupported,
                what +
                    " is NVFP4, which CUDA's fused kernels do not read; use --kernels "
                    "reference, or run it on the CPU");
  }
  const bool is_packed = packs(first, precision);
  // Floats all behind one another, then their scales.
  size_t bytes = 0, scales = 0;
  for (const Weight* weight : weights) {
    bytes += device_bytes(*weight, is_packed);
    scales += scale_bytes(*weight, is_packed);
  }
  if (scales != 0) bytes = ops::whole_lines(bytes);
  std::byte* const to = reserve(bytes + scales, what);
  size_t place = 0, scale_place = bytes;
  for (const Weight* weight : weights) {
    const auto add = [&](size_t size, size_t& at, bool is_scales) {
      pending_.push_back({.weight = weight,
                          .is_packed = is_packed,
                          .is_scales = is_scales,
                          .bytes = size,
                          .to = to != nullptr ? to + at : nullptr,
                          .memory = memory_.size()});
      at += size;
    };
    add(device_bytes(*weight, is_packed), place, false);
    if (scales != 0) add(scale_bytes(*weight, is_packed), scale_place, true);
  }
  if (stacked) {
    for (size_t i = 1; i < weights.size(); ++i) first.rows += weights[i]->rows;
  }
  DeviceMatrix& matrix = matrices_.emplace_back();
  matrix.kernel = ops::weight_kernel_name(first);
  matrix.is_packed = is_packed;
  matrix.experts = stacked ? 1 : static_cast<int32_t>(weights.size());
  matrix.bytes = (bytes + scales) / static_cast<size_t>(matrix.experts);
  if (matrix.is_packed) {
    matrix.packed = {kernels::cuda::packed_layout(first), to};
    matrix.activations = activations(first, precision);
    if (matrix.activations == ActivationFormat::kBF16) matrix.kernel += "_a16";
    if (matrix.activations == ActivationFormat::kE4M3) matrix.kernel += "_a8";
  } else {
    matrix.floats = {float_format(first.format), first.rows, first.cols, to};
    if (scales != 0 && to != nullptr) {
      matrix.floats.scales = reinterpret_cast<const float*>(to + bytes);
    }
  }
  return matrix;
}

const DeviceMatrix* DeviceWeights::stacked(const std::vector<MatrixPart>& parts, int64_t cols,
                                           Precision precision) {
  std::vector<const Weight*> weights;
  for (const MatrixPart& part : parts) {
    const Weight& weight = host_.matrix(part.module, part.rows, cols);
    const bool splits_tile = !weights.empty() && packs(weight, precision) &&
                             weights.back()->rows % kernels::kTileRows != 0;
    if (splits_tile || (!weights.empty() && !same_format(*weights[0], weight))) return nullptr;
    weights.push_back(&weight);
  }
  return &place(weights, "tensor '" + parts[0].module + "'", true, precision);
}

const DeviceMatrix& DeviceWeights::matrix(const std::string& module, int64_t rows, int64_t cols,
                                          Precision precision) {
  return *stacked({{module, rows}}, cols, precision);
}

const DeviceMatrix& DeviceWeights::experts(const std::vector<std::string>& modules, int64_t rows,
                                           int64_t cols) {
  std::vector<const Weight*> weights;
  for (const std::string& module : modules) {
    const Weight& weight = host_.matrix(module, rows, cols);
    if (!weights.empty() && !same_format(*weights[0], weight)) {
      throw Error(ErrorKind::kUnsupported,
                  "tensor '" + module + "' is stored in another format than '" + modules[0] +
                      "'; CUDA's kernels take experts of one format; use --kernels reference");
    }
    weights.push_back(&weight);
  }
  return place(weights, "tensor '" + modules[0] + "' and the other experts'", false,
               Precision::kAsAsked);
}

const EmbeddingTable& DeviceWeights::table(const std::string& module, int64_t rows, int64_t cols) {
  const Weight& weight = host_.matrix(module, rows, cols);
  const bool is_float =
      kernels::is_float_format(weight.format) && weight.format != WeightFormat::kE4M3;
  const auto [found, is_new] = tables_.try_emplace(module);
  EmbeddingTable& table = found->second;
  if (!is_new) return table;
  table.format = is_float ? float_format(weight.format) : FloatFormat::kF32;
  table.n = cols;
  const size_t bytes = static_cast<size_t>(rows * cols * element_bytes(table.format));
  std::byte* to = reserve(bytes, "tensor '" + module + "'");
  pending_.push_back({.weight = &weight,
                      .is_table = !is_float,
                      .bytes = bytes,
                      .to = to,
                      .memory = memory_.size()});
  table.data = to;
  return table;
}

const float* DeviceWeights::vector(const std::vector<std::pair<std::string, int64_t>>& tensors) {
  size_t bytes = 0;
  for (const auto& [tensor, length] : tensors) bytes += static_cast<size_t>(length) * sizeof(float);
  std::byte* const first = reserve(bytes, "tensor '" + tensors[0].first + "'");
  std::byte* to = first;
  for (const auto& [tensor, length] : tensors) {
    const size_t part = static_cast<size_t>(length) * sizeof(float);
    pending_.push_back({.floats = host_.vector(tensor, length), .bytes = part, .to = to});
    if (to != nullptr) to += part;
  }
  return reinterpret_cast<const float*>(first);
}

const float* DeviceWeights::constants(const float* values, int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  std::byte* to = reserve(bytes, "the rotary tables");
  pending_.push_back({.floats = values, .bytes = bytes, .to = to});
  return reinterpret_cast<const float*>(to);
}

std::vector<const float*> DeviceWeights::widened(const std::vector<const Weight*>& weights,
                                                 const std::string& what) {
  size_t bytes = 0;
  for (const Weight* weight : weights) {
    bytes += static_cast<size_t>(weight->rows * weight->cols) * sizeof(float);
  }
  std::byte* to = reserve(bytes, what);
  std::vector<const float*> placed;
  for (const Weight* weight : weights) {
    const size_t part = static_cast<size_t>(weight->rows * weight->cols) * sizeof(float);
    placed.push_back(reinterpret_cast<const float*>(to));
    pending_.push_back(
        {.weight = weight, .is_table = true, .bytes = part, .to = to, .memory = memory_.size()});
    if (to != nullptr) to += part;
  }
  return placed;
}

const std::byte* DeviceWeights::keep(const void* values, size_t bytes, const std::string& what) {
  const auto* first = static_cast<const std::byte*>(values);
  const std::vector<std::byte>& copy = kept_.emplace_back(first, first + bytes);
  std::byte* to = reserve(bytes, what);
  pending_.push_back({.floats = copy.data(), .bytes = bytes, .to = to});
  return to;
}

void DeviceWeights::copy(const void* from, size_t bytes, std::byte* to) {
  check(runtime_.copy_to_device(to, from, bytes), "copying weights");
  check(runtime_.wait(), "copying weights");  // the staging memory is written to again
}

void DeviceWeights::make_rows(const Pending& part, const RowRange& rows, std::byte* to) const {
  const Weight& weight = *part.weight;
  if (part.is_packed) return kernels::cuda::pack_matrix(weight, rows.begin, rows.end, to);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    auto* out = reinterpret_cast<float*>(to) + (row - rows.first) * weight.cols;
    kernel_.embed_row(weight, row, 1.0F, out);
  }
}

void DeviceWeights::make_parts(std::span<const Pending> parts, RowRange of_each,
                               std::byte* staging) const {
  constexpr int64_t kPieceRows = 16 * kernels::kTileRows;
  struct Piece {
    const Pending* part;
    RowRange rows;
    std::byte* to;
  };
  std::vector<Piece> pieces;
  for (const Pending& part : parts) {
    const int64_t end = std::min(part.weight->rows, of_each.end);
    for (int64_t row = of_each.begin; row < end; row += kPieceRows) {
      pieces.push_back({&part, {row, std::min(end, row + kPieceRows), of_each.begin}, staging});
    }
    staging += part.bytes;
  }
  core::run_pieces(threads_, pieces.size(), [&] {
    return [&](size_t i) { make_rows(*pieces[i].part, pieces[i].rows, pieces[i].to); };
  });
}

void DeviceWeights::upload_large_table(const Pending& table, std::vector<std::byte>& staging) {
  const int64_t row_bytes = table.weight->cols * static_cast<int64_t>(sizeof(float));
  const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(kStagingBytes) / row_bytes);
  for (int64_t row = 0; row < table.weight->rows; row += step) {
    const int64_t end = std::min(table.weight->rows, row + step);
    staging.resize(static_cast<size_t>((end - row) * row_bytes));
    make_parts(std::span(&table, 1), {row, end, row}, staging.data());
    copy(staging.data(), staging.size(), table.to + row * row_bytes);
  }
}

void DeviceWeights::upload() {
  if (!weights_read_) return;
  std::vector<std::byte> staging;
  for (size_t i = 0; i < pending_.size();) {
    const Pending& first = pending_[i];
    if (!first.is_made()) {
      const void* from = first.floats != nullptr ? first.floats
                         : first.is_scales       ? first.weight->scales
                                                 : first.weight->data;
      copy(from, first.bytes, first.to);
      ++i;
      continue;
    }
    if (first.is_table && first.bytes > kStagingBytes) {
      upload_large_table(first, staging);
      ++i;
      continue;
    }
    // Parts that lie behind one another on the device are made together, and copied at once.
    size_t end = i, bytes = 0;
    while (end < pending_.size() && pending_[end].is_made() &&
           pending_[end].memory == first.memory && pending_[end].to == first.to + bytes &&
           (end == i || bytes + pending_[end].bytes <= kStagingBytes)) {
      bytes += pending_[end++].bytes;
    }
    staging.resize(bytes);
    make_parts(std::span(pending_).subspan(i, end - i), {}, staging.data());
    copy(staging.data(), bytes, first.to);
    i = end;
  }
  pending_.clear();
  kept_.clear();
}

}  // namespace vitrine::backend_cuda

#include "backend_cuda/device_weights.h"

#include <algorithm>

namespace vitrine::backend_cuda {

using kernels::Weight;
using kernels::WeightFormat;
using kernels::cuda::EmbeddingTable;
using kernels::cuda::FloatFormat;

namespace {

// Rows that are packed, or widened, and copied at once.
constexpr int64_t kPieceBytes = int64_t{64} << 20;

FloatFormat float_format(WeightFormat format) {
  return format == WeightFormat::kF16    ? FloatFormat::kF16
         : format == WeightFormat::kBF16 ? FloatFormat::kBF16
                                         : FloatFormat::kF32;
}

bool same_format(const Weight& a, const Weight& b) {
  return a.format == b.format && a.scale_format == b.scale_format &&
         a.offset_format == b.offset_format && a.group_size == b.group_size && a.cols == b.cols;
}

size_t device_bytes(const Weight& weight, bool is_packed) {
  return is_packed ? static_cast<size_t>(kernels::cuda::packed_layout(weight).bytes())
                   : static_cast<size_t>(weight.rows * weight.cols *
                                         kernels::element_bytes(weight.format));
}

}  // namespace

std::byte* DeviceWeights::reserve(size_t bytes, const std::string& what) {
  num_bytes_ += bytes;
  if (!weights_read_) return nullptr;
  return memory_.emplace_back(runtime_, bytes, what).data();
}

bool DeviceWeights::packs(const Weight& weight, Precision precision) const {
  if (!kernels::is_float_format(weight.format)) return true;
  return bf16_activations_ && precision == Precision::kAsAsked &&
         weight.format == WeightFormat::kBF16;
}

const DeviceMatrix& DeviceWeights::place(const std::vector<const Weight*>& weights,
                                         const std::string& what, bool stacked,
                                         Precision precision) {
  Weight first = *weights[0];
  const bool is_packed = packs(first, precision);
  size_t bytes = 0;
  for (const Weight* weight : weights) bytes += device_bytes(*weight, is_packed);
  std::byte* to = reserve(bytes, what);
  for (const Weight* weight : weights) {
    const size_t part = device_bytes(*weight, is_packed);
    pending_.push_back({.weight = weight, .is_packed = is_packed, .bytes = part, .to = to});
    if (to != nullptr) to += part;
  }
  if (to != nullptr) to -= bytes;
  if (stacked) {
    for (size_t i = 1; i < weights.size(); ++i) first.rows += weights[i]->rows;
  }
  DeviceMatrix& matrix = matrices_.emplace_back();
  matrix.kernel = ops::weight_kernel_name(first);
  matrix.is_packed = is_packed;
  matrix.experts = stacked ? 1 : static_cast<int32_t>(weights.size());
  matrix.bytes = bytes / static_cast<size_t>(matrix.experts);
  if (matrix.is_packed) {
    matrix.packed = {kernels::cuda::packed_layout(first), to};
    if (bf16_activations_ && precision == Precision::kAsAsked &&
        !kernels::cuda::has_parts(matrix.packed.layout.kind)) {
      matrix.activations = kernels::cuda::ActivationFormat::kBF16;
      matrix.kernel += "_a16";
    }
  } else {
    matrix.floats = {float_format(first.format), first.rows, first.cols, to};
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
  const bool is_float = kernels::is_float_format(weight.format);
  const auto [found, is_new] = tables_.try_emplace(module);
  EmbeddingTable& table = found->second;
  if (!is_new) return table;
  table.format = is_float ? float_format(weight.format) : FloatFormat::kF32;
  table.n = cols;
  const size_t bytes = static_cast<size_t>(rows * cols * element_bytes(table.format));
  std::byte* to = reserve(bytes, "tensor '" + module + "'");
  pending_.push_back({.weight = &weight, .is_table = !is_float, .bytes = bytes, .to = to});
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
    pending_.push_back({.weight = weight, .is_table = true, .bytes = part, .to = to});
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
}

void DeviceWeights::upload() {
  if (!weights_read_) return;
  std::vector<std::byte> piece;
  for (const Pending& part : pending_) {
    if (part.floats != nullptr) {
      copy(part.floats, part.bytes, part.to);
      continue;
    }
    const Weight& weight = *part.weight;
    if (part.is_table) {
      const int64_t row_bytes = weight.cols * static_cast<int64_t>(sizeof(float));
      const int64_t step = std::max<int64_t>(1, kPieceBytes / row_bytes);
      for (int64_t row = 0; row < weight.rows; row += step) {
        const int64_t count = std::min(step, weight.rows - row);
        piece.resize(static_cast<size_t>(count * row_bytes));
        for (int64_t i = 0; i < count; ++i) {
          auto* out = reinterpret_cast<float*>(piece.data() + i * row_bytes);
          kernel_.embed_row(weight, row + i, 1.0F, out);
        }
        copy(piece.data(), piece.size(), part.to + row * row_bytes);
      }
    } else if (part.is_packed) {
      piece.resize(part.bytes);
      kernels::cuda::pack_matrix(weight, 0, weight.rows, piece.data());
      copy(piece.data(), piece.size(), part.to);
    } else {
      copy(weight.data, part.bytes, part.to);
    }
  }
  pending_.clear();
  kept_.clear();
}

}  // namespace vitrine::backend_cuda

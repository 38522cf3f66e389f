// SPDX-License-Identifier: Apache-2.0
// Folders whose matrices have an order of columns (act-order), made of ordinary ones.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "quant/pack.h"
#include "tests/engine/engine_fixture.h"
#include "vitrine/quant.h"

namespace vitrine::testing {

/// An order: what stands at i goes to order[i] of the file.
using Order = std::vector<int32_t>;

/// Returns one that repeats nothing obvious.
inline Order shuffled(int64_t count, uint32_t seed) {
  Order order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  uint32_t state = seed * 747796405u + 2891336453u;
  for (size_t i = order.size(); i > 1; --i) {
    state = state * 1664525u + 1013904223u;
    std::swap(order[i - 1], order[(state >> 8) % i]);
  }
  return order;
}

/// Puts the parts of `from`, each of so many elements, where the order says.
template <typename T>
std::vector<T> moved(const std::vector<T>& from, const Order& order, size_t width) {
  std::vector<T> to(from.size());
  for (size_t i = 0; i < order.size(); ++i) {
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(i * width), width,
                to.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(order[i]) * width));
  }
  return to;
}

/// A folder of packed integers whose rows and columns are moved about, to be written anew.
class OrderedFolder {
 public:
  explicit OrderedFolder(const std::string& path) : source_(Checkpoint::open(path)) {
    for (const TensorInfo& info : source_.tensors()) {
      const std::string module = info.name.substr(0, info.name.rfind('.'));
      if (source_.find_quantized(module) == nullptr || info.name.ends_with(".bias")) {
        std::vector<std::byte>& bytes = others_[info.name];
        bytes.resize(info.num_bytes);
        source_.read(info, bytes);
      } else if (!matrices_.contains(module)) {
        matrices_[module] = source_.read_quantized(module).value();
      }
    }
  }

  const Checkpoint& source() const { return source_; }
  const std::map<std::string, QuantizedMatrix>& matrices() const { return matrices_; }
  const QuantizedMatrix& matrix(const std::string& module) const { return matrices_.at(module); }

  void move_rows(const std::string& module, const Order& order) {
    QuantizedMatrix& matrix = matrices_.at(module);
    matrix.values = moved(matrix.values, order, static_cast<size_t>(matrix.cols));
    matrix.scales = moved(matrix.scales, order, static_cast<size_t>(matrix.groups()));
    if (!matrix.zero_points.empty()) {
      matrix.zero_points = moved(matrix.zero_points, order, static_cast<size_t>(matrix.groups()));
    }
    const auto bias = others_.find(module + ".bias");
    if (bias == others_.end()) return;
    bias->second = moved(bias->second, order, bias->second.size() / order.size());
  }

  /// A column keeps its group wherever it goes.
  void move_columns(const std::string& module, const Order& order) {
    QuantizedMatrix& matrix = matrices_.at(module);
    const auto cols = static_cast<size_t>(matrix.cols);
    std::vector<int8_t> values(matrix.values.size());
    std::vector<int32_t>& groups = groups_[module];
    groups.resize(cols);
    for (size_t col = 0; col < cols; ++col) {
      const auto to = static_cast<size_t>(order[col]);
      groups[to] = static_cast<int32_t>(col) / matrix.group_size;
      for (size_t row = 0; row < static_cast<size_t>(matrix.rows); ++row) {
        values[row * cols + to] = matrix.values[row * cols + col];
      }
    }
    matrix.values = std::move(values);
  }

  void write(const TemporaryFolder& folder) const {
    write_bytes(folder / "config.json", source_.config_json());
    std::map<std::string, Stored> tensors;
    for (const auto& [name, bytes] : others_) {
      const TensorInfo& info = source_.require(name);
      tensors[name] = {info.dtype, info.shape, bytes};
    }
    for (const auto& [module, matrix] : matrices_) add(tensors, module, matrix);
    SafetensorsWriter writer(folder / "model.safetensors");
    for (const auto& [name, tensor] : tensors) writer.declare(name, tensor.dtype, tensor.shape);
    writer.begin();
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor.bytes);
    writer.finish();
  }

 private:
  struct Stored {
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  template <typename T>
  static Stored stored(DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return {dtype, std::move(shape), {bytes.begin(), bytes.end()}};
  }

  void add(std::map<std::string, Stored>& tensors, const std::string& module,
           const QuantizedMatrix& matrix) const {
    const auto [rows, cols] = std::pair(matrix.rows, matrix.cols);
    tensors[module + ".weight_packed"] =
        stored(DType::kI32, {rows, packed_words(cols, matrix.bits)},
               pack_int32(matrix.values, rows, cols, matrix.bits));
    tensors[module + ".weight_shape"] = stored(DType::kI64, {2}, std::vector<int64_t>{rows, cols});
    std::vector<uint16_t> halves;
    for (const float scale : matrix.scales) {
      halves.push_back(matrix.scale_dtype == DType::kBF16 ? float_to_bf16(scale)
                                                          : float_to_f16(scale));
    }
    const std::vector<int64_t> shape = {rows, matrix.groups()};
    tensors[module + ".weight_scale"] = matrix.scale_dtype == DType::kF32
                                            ? stored(DType::kF32, shape, matrix.scales)
                                            : stored(matrix.scale_dtype, shape, halves);
    if (!matrix.zero_points.empty()) {
      tensors[module + ".weight_zero_point"] =
          stored(DType::kI32, {packed_words(rows, matrix.bits), matrix.groups()},
                 pack_int32_rows(matrix.zero_points, rows, matrix.groups(), matrix.bits));
    }
    const auto groups = groups_.find(module);
    if (groups == groups_.end()) return;
    tensors[module + ".weight_g_idx"] = stored(DType::kI32, {cols}, groups->second);
  }

  Checkpoint source_;
  std::map<std::string, std::vector<std::byte>> others_;
  std::map<std::string, QuantizedMatrix> matrices_;
  std::map<std::string, std::vector<int32_t>> groups_;
};

}  // namespace vitrine::testing

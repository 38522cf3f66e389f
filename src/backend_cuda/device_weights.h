// SPDX-License-Identifier: Apache-2.0
// A model's weights on the device: asked for while the plan is made, packed and uploaded once.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "backend_cuda/device_runtime.h"
#include "engine/run/device_model.h"
#include "kernels/cuda/embed/embed.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/linear_float.h"
#include "ops/plan.h"

namespace vitrine::backend_cuda {

/// Numbers of a row's forms in bf16 and E4M3; the forms in int8 go by their group size.
inline constexpr int32_t kBf16Form = 0, kE4M3Form = 1;

/// Matrices that one launch reads, one behind another: experts, or rows of several (qkv).
struct DeviceMatrix {
  std::string kernel;      // "linear_int4g32"
  bool is_packed = false;  // for tensor cores; else `floats`
  kernels::cuda::ActivationFormat activations = kernels::cuda::ActivationFormat::kInt8;
  kernels::cuda::PackedMatrix packed;
  kernels::cuda::FloatMatrix floats;
  int32_t experts = 1;
  uint64_t bytes = 0;  // of one expert

  /// Which of RowsBuffer::forms its products read.
  int32_t form() const {
    switch (activations) {
      case kernels::cuda::ActivationFormat::kBF16: return kBf16Form;
      case kernels::cuda::ActivationFormat::kE4M3: return kE4M3Form;
      default: return packed.layout.group_size;
    }
  }
  int64_t rows() const { return is_packed ? packed.layout.rows : floats.rows; }
};

/// Whether a product may round its input, and read bf16 and E4M3 weights on tensor cores, where the
/// engine was asked to (EngineOptions::activation_dtype).
enum class Precision : uint8_t { kAsAsked, kAsCpu };

/// What a launch's matrix is made of.
struct MatrixPart {
  std::string module;
  int64_t rows = 0;
};

/// Handles keep their address. Memory is given when a matrix is asked for, its content by upload().
class DeviceWeights {
 public:
  /// Throws kUnsupported for activations that this device has no kernel for.
  DeviceWeights(DeviceRuntime& runtime, const engine::DeviceModelInputs& inputs);

  /// Rows of all parts under each other, as one matrix. Null where they are of several formats, or
  /// cannot be told apart in tiles of 16 rows.
  const DeviceMatrix* stacked(const std::vector<MatrixPart>& parts, int64_t cols,
                              Precision precision = Precision::kAsAsked);
  const DeviceMatrix& matrix(const std::string& module, int64_t rows, int64_t cols,
                             Precision precision = Precision::kAsAsked);
  /// One matrix an expert; all must have one format (kUnsupported).
  const DeviceMatrix& experts(const std::vector<std::string>& modules, int64_t rows, int64_t cols);
  /// The same one for whoever asks: float32, rows as the embedding kernel reads them; the table's
  /// own format where it is a float.
  const kernels::cuda::EmbeddingTable& table(const std::string& module, int64_t rows, int64_t cols);
  /// Vectors of float32, one behind another.
  const float* vector(const std::vector<std::pair<std::string, int64_t>>& tensors);
  /// Floats that the caller keeps until upload().
  const float* constants(const float* values, int64_t count);

  /// Float matrices as float32; null where weights are not read.
  std::vector<const float*> widened(const std::vector<const kernels::Weight*>& weights,
                                    const std::string& what);
  /// A copy of what the host made.
  template <typename T>
  const T* array(const std::vector<T>& values, const std::string& what) {
    return reinterpret_cast<const T*>(keep(values.data(), values.size() * sizeof(T), what));
  }

  /// Packs and copies everything that was asked for. Nothing of the host's is read afterwards.
  void upload();

  uint64_t num_bytes() const { return num_bytes_; }

 private:
  struct Pending {
    const kernels::Weight* weight = nullptr;
    bool is_table = false;   // rows of float32
    bool is_packed = false;  // else floats as they are
    bool is_scales = false;  // of E4M3, as they are
    const void* floats = nullptr;
    size_t bytes = 0;
    std::byte* to = nullptr;
    size_t memory = 0;  // which buffer that is in: one copy stays in one
    /// A tensor that is not made is copied as it stands.
    bool is_made() const { return is_table || is_packed; }
  };

  const std::byte* keep(const void* values, size_t bytes, const std::string& what);
  std::byte* reserve(size_t bytes, const std::string& what);
  const DeviceMatrix& place(const std::vector<const kernels::Weight*>& weights,
                            const std::string& what, bool stacked, Precision precision);
  /// For tensor cores.
  bool packs(const kernels::Weight& weight, Precision precision) const;
  /// What tensor cores multiply a packed matrix with.
  kernels::cuda::ActivationFormat activations(const kernels::Weight& weight,
                                              Precision precision) const;
  /// Rows of a part that is made; of a table, `first` is the one at the memory's beginning.
  struct RowRange {
    int64_t begin = 0, end = INT64_MAX, first = 0;
  };
  void make_rows(const Pending& part, const RowRange& rows, std::byte* to) const;
  /// Those rows of all parts, one part behind another, by all threads.
  void make_parts(std::span<const Pending> parts, RowRange of_each, std::byte* staging) const;
  void upload_large_table(const Pending& table, std::vector<std::byte>& staging);
  void copy(const void* from, size_t bytes, std::byte* to);

  DeviceRuntime& runtime_;
  const kernels::CpuKernels& kernel_;
  ops::PackedWeights& host_;
  bool weights_read_;
  int threads_;
  DType activation_dtype_;
  std::deque<DeviceMatrix> matrices_;
  std::map<std::string, kernels::cuda::EmbeddingTable> tables_;  // by module
  std::vector<DeviceBuffer> memory_;
  std::vector<Pending> pending_;
  std::deque<std::vector<std::byte>> kept_;  // until upload()
  uint64_t num_bytes_ = 0;
};

}  // namespace vitrine::backend_cuda

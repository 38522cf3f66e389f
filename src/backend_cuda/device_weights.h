// A model's weights on the device: asked for while the plan is made, packed and uploaded once.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "backend_cuda/device_runtime.h"
#include "engine/device_model.h"
#include "kernels/cuda/embed/embed.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/linear_float.h"
#include "ops/plan.h"

namespace vitrine::backend_cuda {

/// Of a row's forms the one that is bf16; those of int8 go by their group size.
inline constexpr int32_t kBf16Form = 0;

/// Matrices that one launch reads, one behind another: experts, or rows of several (qkv).
struct DeviceMatrix {
  std::string kernel;      // "linear_int4g32"
  bool is_packed = false;  // for tensor cores; else `floats`
  kernels::cuda::ActivationFormat activations = kernels::cuda::ActivationFormat::kInt8;
  kernels::cuda::PackedMatrix packed;
  kernels::cuda::FloatMatrix floats;
  int32_t experts = 1;
  uint64_t bytes = 0;  // of one expert

  /// Of RowsBuffer::forms the one that its products read.
  int32_t form() const {
    const bool is_bf16 = activations == kernels::cuda::ActivationFormat::kBF16;
    return is_bf16 ? kBf16Form : packed.layout.group_size;
  }
  int64_t rows() const { return is_packed ? packed.layout.rows : floats.rows; }
};

/// Whether a product may round its input, and read bf16 weights on tensor cores, where the engine
/// was asked to (EngineOptions::activation_dtype).
enum class Precision : uint8_t { kAsAsked, kAsCpu };

/// What a launch's matrix is made of.
struct MatrixPart {
  std::string module;
  int64_t rows = 0;
};

/// Handles keep their address. Memory is given when a matrix is asked for, its content by upload().
class DeviceWeights {
 public:
  DeviceWeights(DeviceRuntime& runtime, const engine::DeviceModelInputs& inputs)
      : runtime_(runtime),
        kernel_(inputs.kernel),
        host_(inputs.weights),
        weights_read_(inputs.weights_read),
        bf16_activations_(inputs.options.activation_dtype == DType::kBF16) {}

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
    const void* floats = nullptr;
    size_t bytes = 0;
    std::byte* to = nullptr;
  };

  const std::byte* keep(const void* values, size_t bytes, const std::string& what);
  std::byte* reserve(size_t bytes, const std::string& what);
  const DeviceMatrix& place(const std::vector<const kernels::Weight*>& weights,
                            const std::string& what, bool stacked, Precision precision);
  /// For tensor cores.
  bool packs(const kernels::Weight& weight, Precision precision) const;
  void copy(const void* from, size_t bytes, std::byte* to);

  DeviceRuntime& runtime_;
  const kernels::CpuKernels& kernel_;
  ops::PackedWeights& host_;
  bool weights_read_;
  bool bf16_activations_;
  std::deque<DeviceMatrix> matrices_;
  std::map<std::string, kernels::cuda::EmbeddingTable> tables_;  // by module
  std::vector<DeviceBuffer> memory_;
  std::vector<Pending> pending_;
  std::deque<std::vector<std::byte>> kept_;  // until upload()
  uint64_t num_bytes_ = 0;
};

}  // namespace vitrine::backend_cuda

// Weights of a checkpoint as the fused path reads them: packed once, each behind a handle.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ops/plan.h"
#include "vitrine/checkpoint.h"

namespace vitrine::model {

/// Memory for weights, in pieces of large pages where the system gives them.
class WeightMemory {
 public:
  WeightMemory() = default;
  WeightMemory(const WeightMemory&) = delete;
  WeightMemory& operator=(const WeightMemory&) = delete;
  ~WeightMemory();
  /// Zeroed, 64-byte aligned, valid as long as this. Throws kOutOfMemory naming what it is for.
  std::byte* allocate(size_t size, const std::string& what);

 private:
  struct Chunk {
    void* pages = nullptr;
    size_t size = 0;
  };
  std::vector<Chunk> chunks_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
};

/// The tensor behind a module whose blocks a fused kernel reads without loss, or null. Gate and up
/// projection run in one kernel, so each has one only where the other has.
const TensorInfo* find_packed_blocks(const Checkpoint& checkpoint, const std::string& module);

class CheckpointWeights : public ops::PackedWeights {
 public:
  /// With `read` false the tensors' presence, types and shapes are checked and the handles are
  /// empty: a plan can be made and not run.
  CheckpointWeights(const Checkpoint& checkpoint, bool read)
      : checkpoint_(checkpoint), read_(read) {}

  const kernels::Weight& matrix(const std::string& module, int64_t rows, int64_t cols) override;
  const float* vector(const std::string& tensor, int64_t length) override;

  /// Fills the matrices that were asked for, on so many threads. Until then they hold zeros.
  /// Throws kIo, kBadFile.
  void load(int threads);

  uint64_t num_bytes() const { return num_bytes_; }
  int64_t num_parameters() const { return num_parameters_; }

 private:
  /// A matrix that is still to be read.
  struct Pending {
    const TensorInfo* info = nullptr;
    kernels::Weight weight;
    std::byte *data = nullptr, *scales = nullptr, *offsets = nullptr;
    int64_t stored_row_bytes = 0;
  };
  void plan_blocks(kernels::Weight& weight, const TensorInfo& info, const std::string& module);
  void plan_float(kernels::Weight& weight, const std::string& module, int64_t rows, int64_t cols);
  void load_quantized(kernels::Weight& weight, const QuantizedMatrix& matrix,
                      const std::string& module);
  void load_rows(const Pending& matrix, int64_t row_begin, int64_t row_end,
                 std::vector<std::byte>& buffer) const;
  std::byte* allocate(size_t size, const std::string& module);

  Checkpoint checkpoint_;
  bool read_;
  WeightMemory memory_;
  std::vector<Pending> pending_;
  std::map<std::string, kernels::Weight> matrices_;  // addresses are stable
  std::map<std::string, std::vector<float>> vectors_;
  uint64_t num_bytes_ = 0;
  int64_t num_parameters_ = 0;
};

/// Throws kBadFile where a quantized matrix has another shape than the config says.
void check_matrix_shape(const Checkpoint& checkpoint, const std::string& module,
                        const QuantizedMatrix& matrix, int64_t rows, int64_t cols);

}  // namespace vitrine::model

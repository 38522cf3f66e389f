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

/// Memory of one weight, 64-byte aligned. Throws kOutOfMemory naming what it was for.
class AlignedBytes {
 public:
  AlignedBytes(size_t size, const std::string& what);
  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* pointer) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

class CheckpointWeights : public ops::PackedWeights {
 public:
  /// With `read` false the tensors' presence, types and shapes are checked and the handles are
  /// empty: a plan can be made and not run.
  CheckpointWeights(const Checkpoint& checkpoint, bool read)
      : checkpoint_(checkpoint), read_(read) {}

  const kernels::Weight& matrix(const std::string& module, int64_t rows, int64_t cols) override;
  const float* vector(const std::string& tensor, int64_t length) override;

  uint64_t num_bytes() const { return num_bytes_; }
  int64_t num_parameters() const { return num_parameters_; }

 private:
  struct Entry {
    kernels::Weight weight;
    std::vector<AlignedBytes> memory;
  };
  void load_float(Entry& entry, const std::string& module, int64_t rows, int64_t cols);
  void load_quantized(Entry& entry, const QuantizedMatrix& matrix, const std::string& module);
  std::byte* allocate(Entry& entry, size_t size, const std::string& what);

  Checkpoint checkpoint_;
  bool read_;
  std::map<std::string, Entry> matrices_;  // addresses are stable
  std::map<std::string, std::vector<float>> vectors_;
  uint64_t num_bytes_ = 0;
  int64_t num_parameters_ = 0;
};

/// Throws kBadFile where a quantized matrix has another shape than the config says.
void check_matrix_shape(const Checkpoint& checkpoint, const std::string& module,
                        const QuantizedMatrix& matrix, int64_t rows, int64_t cols);

}  // namespace vitrine::model

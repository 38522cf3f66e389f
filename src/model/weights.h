// SPDX-License-Identifier: Apache-2.0
// Weights of a checkpoint as the fused path reads them: packed once, each behind a handle.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kv/mapped_memory.h"
#include "model/expert_cache.h"
#include "model/stored_matrix.h"
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
  /// Returns zeroed memory, 64-byte aligned, valid as long as this. Throws kOutOfMemory naming
  /// `what`.
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

class CheckpointWeights : public ops::PackedWeights {
 public:
  /// With `read` false the tensors' presence, types and shapes are checked, and what they would
  /// take is counted: a plan can be made and not run. (What stands beside a mapped matrix is read.)
  /// With an `expert_cache_bytes` above 0 routed experts are read when a step needs them, into so
  /// much memory; `reads_ahead`: those that the next layer may need, too. With `mapped` the file is
  /// mapped and matrices stay in it, but for those whose rows it has in another order.
  CheckpointWeights(const kernels::CpuKernels& kernel, const Checkpoint& checkpoint, bool read,
                    uint64_t expert_cache_bytes = 0, bool mapped = false, bool reads_ahead = false)
      : kernel_(kernel),
        checkpoint_(checkpoint),
        read_(read),
        mapped_(mapped),
        experts_(kernel, checkpoint_, memory_, expert_cache_bytes, read, reads_ahead),
        caches_experts_(expert_cache_bytes > 0) {}

  /// Reads modules of folders that no device's kernels take as blocks as floats.
  void read_for_device() { takes_blocks_ = false; }

  const kernels::Weight& matrix(const std::string& module, int64_t rows, int64_t cols) override {
    return matrix_rows(module, rows, cols, 0, rows);
  }
  const kernels::Weight& matrix_rows(const std::string& module, int64_t rows, int64_t cols,
                                     int64_t begin, int64_t end) override;
  ops::FormedMatrix formed_matrix(const std::string& module, int64_t rows, int64_t cols,
                                  const int32_t* row_order) override;
  /// Those of integers, whose rows are packed in memory then.
  bool orders_rows(const std::string& module) override;
  const float* vector(const std::string& tensor, int64_t length) override;
  const ops::LatentWeights& latent(const ops::LatentModule& module) override;
  bool holds_numbers() const override { return read_; }
  ops::ExpertCache* experts() override { return caches_experts_ ? &experts_ : nullptr; }

  /// Fills the matrices that were asked for, on so many threads, and makes room for
  /// `most_active_experts` or more in the cache of experts. Until then they hold zeros. Throws kIo,
  /// kBadFile, kInvalidArgument where the cache is too small, and kCancelled where a host's flag is
  /// raised.
  void load(int threads, int64_t most_active_experts, const std::atomic<bool>* cancelled = nullptr);

  /// Reads a matrix that an op multiplies with anew, from a checkpoint that has it in the same
  /// shape and format, or from floats [rows, cols], rounded to the type that it has. Throws
  /// kInvalidArgument for an unknown one and for other formats, kUnsupported for one that is not in
  /// memory, and what reading throws; it is as it was then.
  void replace(const std::string& module, const Checkpoint& from);
  void replace(const std::string& module, std::span<const float> values);
  /// Gives a matrix its own numbers again. What stood in for a mapped one's goes, and the file's
  /// pages leave this process until they are read. Throws as replace().
  void restore(const std::string& module);

  /// Returns the largest strip (ops/products.h) of matrices that stay in the file; 0: none does.
  size_t strip_bytes() const;
  /// Throws kIo where a file is not as it was opened.
  void check_files() const { checkpoint_.check_unchanged(); }
  /// Makes the error of a mapped matrix that a product refused.
  Error bad_number_error(const kernels::Weight& matrix) const;

  /// Returns where the matrices lie.
  std::vector<std::span<const std::byte>> memory() const;
  uint64_t num_bytes() const { return num_bytes_ + experts_.num_bytes(); }
  uint64_t num_mapped_bytes() const { return num_mapped_bytes_; }
  int64_t num_parameters() const { return num_parameters_ + experts_.num_parameters(); }
  CacheCounts expert_cache() const { return experts_.counts(); }

 private:
  using Order = std::shared_ptr<const std::vector<int32_t>>;
  struct LessByColumns {
    bool operator()(const Order& a, const Order& b) const { return *a < *b; }
  };
  /// A matrix whose columns or rows have another order than the file's.
  struct Ordered {
    kernels::Weight weight;
    ops::InputForm form;
    const int32_t* row_order = nullptr;
  };
  /// Makes room for a matrix that is packed in memory, to be read by load().
  void pack_later(StoredMatrix& stored, const std::string& module);
  /// Returns the like of an order that another matrix has, or this one, which is kept.
  Order share_order(const Order& order);
  /// False where it cannot be used where the file has it.
  bool map(StoredMatrix& matrix, const std::string& module);
  std::byte* allocate(size_t size, const std::string& module);
  const kernels::Weight& find_replaceable(const std::string& module) const;
  /// Returns where the numbers of a matrix of floats may be written, all of them: in the memory
  /// that it has, or in some that takes the place of the file's.
  void* writable_floats(const std::string& module);

  const kernels::CpuKernels& kernel_;
  Checkpoint checkpoint_;
  bool read_, mapped_;
  bool takes_blocks_ = true;
  WeightMemory memory_;
  FileExpertCache experts_;
  bool caches_experts_;
  std::vector<StoredMatrix> pending_;                // still to be read
  std::map<std::string, kernels::Weight> matrices_;  // by name_of_rows(); addresses are stable
  std::map<std::string, Ordered> ordered_;           // by module; addresses are stable
  std::map<std::string, float> row_scales_;          // of ops that make inputs so, by module
  std::set<Order, LessByColumns> orders_;
  /// A matrix of floats that stands in the mapped file, or stood there until it was replaced.
  struct MappedFloats {
    void* data = nullptr;  // in the file, where nothing may be written
    std::optional<kv::MappedMemory> instead{};
  };
  std::map<std::string, MappedFloats> mapped_floats_;  // by module
  std::map<std::string, std::vector<float>> vectors_;
  std::map<std::string, ops::LatentWeights> latents_;  // addresses are stable
  uint64_t num_bytes_ = 0, num_mapped_bytes_ = 0;
  int64_t num_parameters_ = 0;
};

}  // namespace vitrine::model

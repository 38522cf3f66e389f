// SPDX-License-Identifier: Apache-2.0
// Experts that are read from the checkpoint when a step needs them, and kept while there is room.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "model/stored_matrix.h"
#include "ops/plan.h"

namespace vitrine::model {

class WeightMemory;

/// What the cache holds and did (ExpertCacheStats of the engine).
struct CacheCounts {
  int64_t slots = 0, experts = 0;
  uint64_t slot_bytes = 0, hits = 0, misses = 0, bytes_read = 0;
  uint64_t guesses = 0, right_guesses = 0, read_ahead = 0, read_ahead_used = 0;
};

class FileExpertCache final : public ops::ExpertCache {
 public:
  /// With `read` false there is no memory behind it: a plan can be made and not run. `reads_ahead`:
  /// prefetch has an effect.
  FileExpertCache(const kernels::CpuKernels& kernel, const Checkpoint& checkpoint,
                  WeightMemory& memory, uint64_t budget, bool read, bool reads_ahead)
      : kernel_(kernel),
        checkpoint_(checkpoint),
        memory_(memory),
        budget_(budget),
        read_(read),
        reads_ahead_(reads_ahead) {}

  int32_t add(const ops::ExpertModules& modules) override;
  const ops::ExpertMatrices& matrices(int32_t expert) const override {
    return experts_[static_cast<size_t>(expert)]->matrices;
  }
  /// Takes the memory, after planning. Throws kInvalidArgument where the budget does not hold
  /// `most_active` experts, as many as one layer of a step may need.
  void allocate(int64_t most_active);

  int32_t select(const int32_t* experts, int32_t count) override;
  bool is_here(int32_t expert) const override {
    return experts_[static_cast<size_t>(expert)]->state.load(std::memory_order_acquire) ==
           State::kRead;
  }
  int32_t num_asked() const override { return static_cast<int32_t>(asked_.size()); }
  void ask(int32_t index) const noexcept override;
  void wait(int32_t expert) noexcept override;
  void finish() override;
  bool reads_ahead() const override { return reads_ahead_; }
  void prefetch(const int32_t* experts, int32_t count) override;

  bool is_empty() const { return experts_.empty(); }
  uint64_t num_bytes() const { return slots_.size() * slot_bytes_; }
  int64_t num_parameters() const { return num_parameters_; }
  CacheCounts counts() const;

 private:
  static constexpr int32_t kNone = -1;
  /// Whoever moves an expert from kAsked to kReading reads it; with kAbsent it has no slot.
  enum class State : uint8_t { kAbsent, kAsked, kReading, kRead, kFailed };
  struct Expert {
    StoredMatrix stored[3];  // gate, up, down
    ops::ExpertMatrices matrices;
    int32_t slot = kNone;
    std::atomic<State> state = State::kAbsent;
    uint64_t guessed = UINT64_MAX;  // when it was guessed last
    bool is_read_ahead = false;     // and not used since
    std::exception_ptr error;       // of kFailed
  };
  struct Slot {
    std::byte* memory = nullptr;
    int32_t expert = kNone;
    uint64_t last_use = 0;
  };
  size_t bytes_of(const Expert& expert) const;
  static ops::ExpertMatrices handles_of(const Expert& expert);
  void read(Expert& expert) noexcept;
  void give_slot(int32_t id);
  void forget_unread();

  const kernels::CpuKernels& kernel_;
  const Checkpoint& checkpoint_;
  WeightMemory& memory_;
  uint64_t budget_;
  bool read_, reads_ahead_;
  std::vector<std::unique_ptr<Expert>> experts_;  // addresses are stable
  std::vector<Slot> slots_;
  size_t slot_bytes_ = 0;
  int64_t num_parameters_ = 0;
  std::vector<int32_t> missing_;  // of the last select
  std::vector<int32_t> asked_;    // of them, where they are several, and of guesses since
  uint64_t clock_ = 0;
  CacheCounts counts_;
  std::atomic<uint64_t> bytes_read_ = 0;
};

}  // namespace vitrine::model

// SPDX-License-Identifier: Apache-2.0
#include "model/expert_cache.h"

#include <algorithm>

#include "model/weights.h"

namespace vitrine::model {

size_t FileExpertCache::bytes_of(const Expert& expert) const {
  size_t bytes = 0;
  for (const StoredMatrix& matrix : expert.stored) bytes += matrix.num_bytes();
  return bytes;
}

int32_t FileExpertCache::add(const ops::ExpertModules& modules) {
  auto expert = std::make_unique<Expert>();
  const std::string* names[] = {&modules.gate, &modules.up, &modules.down};
  for (int i = 0; i < 3; ++i) {
    const bool is_down = i == 2;
    expert->stored[i] =
        find_stored_matrix(checkpoint_, *names[i], is_down ? modules.hidden : modules.intermediate,
                           is_down ? modules.intermediate : modules.hidden);
  }
  num_parameters_ += 3 * modules.hidden * modules.intermediate;
  expert->matrices = {expert->stored[0].weight, expert->stored[1].weight, expert->stored[2].weight};
  slot_bytes_ = std::max(slot_bytes_, bytes_of(*expert));
  experts_.push_back(std::move(expert));
  return static_cast<int32_t>(experts_.size()) - 1;
}

void FileExpertCache::allocate(int64_t most_active) {
  if (experts_.empty() || !read_) return;
  const auto fitting = static_cast<int64_t>(budget_ / slot_bytes_);
  if (fitting < most_active) {
    throw Error(ErrorKind::kInvalidArgument,
                "the expert cache (--expert-cache, engine option 'expert_cache_bytes') has " +
                    std::to_string(budget_) + " bytes, which hold " + std::to_string(fitting) +
                    " experts; expected " +
                    std::to_string(static_cast<uint64_t>(most_active) * slot_bytes_) +
                    " or more, for the " + std::to_string(most_active) +
                    " that one layer of a step may need, or a smaller max_step_tokens");
  }
  slots_.resize(static_cast<size_t>(std::min(fitting, static_cast<int64_t>(experts_.size()))));
  for (Slot& slot : slots_) slot.memory = memory_.allocate(slot_bytes_, "the expert cache");
  missing_.reserve(static_cast<size_t>(most_active));
}

int32_t FileExpertCache::select(const int32_t* experts, int32_t count) {
  forget_unread();  // of a step that was cancelled
  ++clock_;
  missing_.clear();
  for (int32_t i = 0; i < count; ++i) {
    const int32_t slot = experts_[static_cast<size_t>(experts[i])]->slot;
    if (slot == kNone) {
      missing_.push_back(experts[i]);
    } else {
      slots_[static_cast<size_t>(slot)].last_use = clock_;
    }
  }
  hits_ += static_cast<uint64_t>(count) - missing_.size();
  misses_ += missing_.size();
  for (const int32_t id : missing_) {
    // The one that was not used for longest; those of this layer have the latest time.
    Slot& slot = *std::ranges::min_element(slots_, {}, &Slot::last_use);
    if (slot.expert != kNone) experts_[static_cast<size_t>(slot.expert)]->slot = kNone;
    slot.expert = id;
    slot.last_use = clock_;
    Expert& expert = *experts_[static_cast<size_t>(id)];
    expert.slot = static_cast<int32_t>(&slot - slots_.data());
    expert.is_read = false;
    std::byte* memory = slot.memory;
    for (StoredMatrix& matrix : expert.stored) {
      matrix.place(memory);
      memory += matrix.num_bytes();
      bytes_read_ += matrix.file_bytes();
    }
    expert.matrices = {expert.stored[0].weight, expert.stored[1].weight, expert.stored[2].weight};
  }
  return static_cast<int32_t>(missing_.size());
}

void FileExpertCache::read(int32_t index) noexcept {
  // Each thread has its own, which grows to the largest matrix once.
  thread_local std::vector<std::byte> buffer;
  Expert& expert = *experts_[static_cast<size_t>(missing_[static_cast<size_t>(index)])];
  try {
    for (const StoredMatrix& matrix : expert.stored) {
      read_stored_rows(kernel_, checkpoint_, matrix, 0, matrix.weight.rows, buffer);
    }
    expert.is_read = true;
  } catch (...) {
    const std::scoped_lock lock(mutex_);
    if (error_ == nullptr) error_ = std::current_exception();
  }
}

// What was selected and not read does not count as kept.
void FileExpertCache::forget_unread() {
  for (const int32_t id : missing_) {
    Expert& expert = *experts_[static_cast<size_t>(id)];
    if (expert.is_read || expert.slot == kNone) continue;
    slots_[static_cast<size_t>(expert.slot)] = {slots_[static_cast<size_t>(expert.slot)].memory};
    expert.slot = kNone;
  }
}

void FileExpertCache::finish() {
  if (error_ == nullptr) return;
  forget_unread();
  std::exception_ptr error;
  std::swap(error, error_);
  std::rethrow_exception(error);
}

CacheCounts FileExpertCache::counts() const {
  return {static_cast<int64_t>(slots_.size()),
          static_cast<int64_t>(experts_.size()),
          slot_bytes_,
          hits_,
          misses_,
          bytes_read_};
}

}  // namespace vitrine::model

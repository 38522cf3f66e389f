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

ops::ExpertMatrices FileExpertCache::handles_of(const Expert& expert) {
  const auto& [gate, up, down] = expert.stored;
  return {gate.weight, up.weight, down.weight, gate.input_form(), down.input_form()};
}

int32_t FileExpertCache::add(const ops::ExpertModules& modules) {
  auto expert = std::make_unique<Expert>();
  const std::string* names[] = {&modules.gate, &modules.up, &modules.down};
  for (int i = 0; i < 3; ++i) {
    const bool is_down = i == 2;
    expert->stored[i] =
        find_stored_matrix(checkpoint_, *names[i], is_down ? modules.hidden : modules.intermediate,
                           is_down ? modules.intermediate : modules.hidden,
                           /*takes_blocks=*/true, /*takes_form=*/true);
  }
  num_parameters_ += 3 * modules.hidden * modules.intermediate;
  expert->matrices = handles_of(*expert);
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
  asked_.reserve(static_cast<size_t>(most_active) + experts_.size());
}

int32_t FileExpertCache::select(const int32_t* experts, int32_t count) {
  forget_unread();  // of a step that was cancelled
  ++clock_;
  missing_.clear();
  for (int32_t i = 0; i < count; ++i) {
    Expert& expert = *experts_[static_cast<size_t>(experts[i])];
    const bool is_guess = expert.guessed + 1 == clock_;
    if (is_guess) ++counts_.right_guesses;
    if (expert.slot != kNone) {
      slots_[static_cast<size_t>(expert.slot)].last_use = clock_;
      continue;
    }
    if (is_guess && expert.is_read_ahead) ++counts_.read_ahead_used;
    missing_.push_back(experts[i]);
  }
  counts_.hits += static_cast<uint64_t>(count) - missing_.size();
  counts_.misses += missing_.size();
  for (const int32_t id : missing_) give_slot(id);
  // Several are all under way before the first is waited for; one alone is not asked for.
  asked_.clear();
  if (missing_.size() > 1) asked_.assign(missing_.begin(), missing_.end());
  return static_cast<int32_t>(missing_.size());
}

void FileExpertCache::prefetch(const int32_t* experts, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    Expert& expert = *experts_[static_cast<size_t>(experts[i])];
    if (expert.guessed == clock_) continue;
    expert.guessed = clock_;
    ++counts_.guesses;
    expert.is_read_ahead = reads_ahead_ && expert.slot == kNone;
    if (!expert.is_read_ahead) continue;
    ++counts_.read_ahead;
    asked_.push_back(experts[i]);
  }
}

// Takes the place of the one that was not used for longest; those of this layer have the latest
// time.
void FileExpertCache::give_slot(int32_t id) {
  Slot& slot = *std::ranges::min_element(slots_, {}, &Slot::last_use);
  if (slot.expert != kNone) {
    Expert& other = *experts_[static_cast<size_t>(slot.expert)];
    other.slot = kNone;
    other.state = State::kAbsent;
  }
  slot.expert = id;
  slot.last_use = clock_;
  Expert& expert = *experts_[static_cast<size_t>(id)];
  expert.slot = static_cast<int32_t>(&slot - slots_.data());
  std::byte* memory = slot.memory;
  for (StoredMatrix& matrix : expert.stored) {
    matrix.place(memory);
    memory += matrix.num_bytes();
  }
  expert.matrices = handles_of(expert);
  expert.state = State::kAsked;
}

void FileExpertCache::ask(int32_t index) const noexcept {
  const int32_t id = asked_[static_cast<size_t>(index)];
  for (const StoredMatrix& matrix : experts_[static_cast<size_t>(id)]->stored) {
    checkpoint_.read_ahead(*matrix.info);
    if (matrix.quantized) checkpoint_.read_ahead(*matrix.quantized->scales);
  }
}

void FileExpertCache::read(Expert& expert) noexcept {
  // Each thread has its own, which grows to the largest matrix once.
  thread_local std::vector<std::byte> buffer;
  State end = State::kRead;
  try {
    for (const StoredMatrix& matrix : expert.stored) {
      read_stored_rows(kernel_, checkpoint_, matrix, 0, matrix.weight.rows, buffer);
      bytes_read_.fetch_add(matrix.file_bytes(), std::memory_order_relaxed);
    }
  } catch (...) {
    expert.error = std::current_exception();
    end = State::kFailed;
  }
  expert.state.store(end, std::memory_order_release);
  expert.state.notify_all();
}

void FileExpertCache::wait(int32_t id) noexcept {
  Expert& expert = *experts_[static_cast<size_t>(id)];
  State state = State::kAsked;
  if (expert.state.compare_exchange_strong(state, State::kReading, std::memory_order_acquire)) {
    return read(expert);
  }
  expert.state.wait(State::kReading, std::memory_order_acquire);
}

// What was selected and not read does not count as kept.
void FileExpertCache::forget_unread() {
  for (const int32_t id : missing_) {
    Expert& expert = *experts_[static_cast<size_t>(id)];
    if (expert.state == State::kRead || expert.slot == kNone) continue;
    Slot& slot = slots_[static_cast<size_t>(expert.slot)];
    slot = {slot.memory};
    expert.slot = kNone;
    expert.state = State::kAbsent;
    expert.error = nullptr;
  }
}

void FileExpertCache::finish() {
  for (const int32_t id : missing_) {
    const Expert& expert = *experts_[static_cast<size_t>(id)];
    if (expert.state != State::kFailed) continue;
    const std::exception_ptr error = expert.error;
    forget_unread();
    std::rethrow_exception(error);
  }
}

CacheCounts FileExpertCache::counts() const {
  CacheCounts counts = counts_;
  counts.bytes_read = bytes_read_.load(std::memory_order_relaxed);
  counts.slots = static_cast<int64_t>(slots_.size());
  counts.experts = static_cast<int64_t>(experts_.size());
  counts.slot_bytes = slot_bytes_;
  return counts;
}

}  // namespace vitrine::model

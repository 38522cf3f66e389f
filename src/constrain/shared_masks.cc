// SPDX-License-Identifier: Apache-2.0
#include "shared_masks.h"

namespace vitrine::constrain {

std::shared_ptr<const TerminalMask> SharedMasks::find(const Fingerprint& of) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(of);
  if (found == places_.end()) {
    ++counts_.misses;
    return nullptr;
  }
  ++counts_.hits;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->mask;
}

void SharedMasks::add(const Fingerprint& of, std::shared_ptr<const TerminalMask> mask) {
  const size_t bytes = sizeof(Entry) + sizeof(TerminalMask) +
                       (mask->words.size() + mask->branches.size()) * sizeof(uint32_t) + 128;
  const std::lock_guard lock(mutex_);
  if (bytes > max_bytes_ || places_.contains(of)) return;  // another thread was first
  shrink(max_bytes_ - bytes);
  entries_.push_front({of, std::move(mask), bytes});
  places_.emplace(of, entries_.begin());
  counts_.bytes += bytes;
}

void SharedMasks::shrink(size_t bytes) {
  while (counts_.bytes > bytes) {
    counts_.bytes -= entries_.back().bytes;
    ++counts_.evictions;
    places_.erase(entries_.back().of);
    entries_.pop_back();
  }
}

void SharedMasks::set_max_bytes(size_t bytes) {
  const std::lock_guard lock(mutex_);
  max_bytes_ = bytes;
  shrink(bytes);
}

SharedMasks::Counts SharedMasks::counts() const {
  const std::lock_guard lock(mutex_);
  Counts out = counts_;
  out.entries = entries_.size();
  return out;
}

}  // namespace vitrine::constrain

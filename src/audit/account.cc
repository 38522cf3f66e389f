// SPDX-License-Identifier: Apache-2.0
#include "account.h"

#include <algorithm>

namespace vitrine::audit {
namespace {

std::string name(uint64_t sequence) { return "sequence " + std::to_string(sequence); }

}  // namespace

int64_t Account::length(uint64_t sequence) const {
  const auto found = sequences_.find(sequence);
  return found == sequences_.end() ? -1 : found->second.length;
}

Account::Sequence& Account::known(uint64_t sequence) {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) {
    throw_damaged(name(sequence) + " is used before it is created or after its release");
  }
  return found->second;
}

uint64_t& Account::total_of(uint8_t state) {
  switch (state) {
    case kCaptured: return totals_.captured;
    case kCounted: return totals_.counted;
    case kReplayed: return totals_.replayed;
    default: return totals_.lost[static_cast<size_t>(state - kLost)];
  }
}

void Account::extend(Sequence& sequence, uint64_t id, int64_t first, int64_t count, uint8_t state) {
  if (first != sequence.length) {
    throw_damaged(name(id) + " goes on at position " + std::to_string(first) + ", expected " +
                  std::to_string(sequence.length) + ": positions without a state");
  }
  if (count <= 0) return;
  if (__builtin_add_overflow(sequence.length, count, &sequence.length)) {
    throw_damaged(name(id) + " has more positions than a number holds");
  }
  if (!sequence.runs.empty() && sequence.runs.back().state == state) {
    sequence.runs.back().count += count;
  } else {
    sequence.runs.push_back({state, count});
  }
  total_of(state) += static_cast<uint64_t>(count);
}

void Account::create(uint64_t sequence) {
  if (!sequences_.emplace(sequence, Sequence{}).second) {
    throw_damaged(name(sequence) + " is created twice");
  }
  ++num_sequences_;
}

void Account::capture(uint64_t sequence, int64_t first, int64_t count) {
  Sequence& own = known(sequence);
  const int64_t copies = std::clamp<int64_t>(own.copied_end - first, 0, count);
  extend(own, sequence, first, copies, kReplayed);
  extend(own, sequence, first + copies, count - copies, kCaptured);
}

void Account::apply(const VtrEvent& event) {
  const uint64_t id = event.sequence;
  switch (event.kind) {
    case VtrEvent::Kind::kCreated: create(id); break;
    case VtrEvent::Kind::kForked:
      if (known(event.source).length != event.count) {
        throw_damaged(name(id) + " shares " + std::to_string(event.count) + " positions of " +
                      name(event.source) + ", expected " +
                      std::to_string(known(event.source).length));
      }
      create(id);
      extend(known(id), id, 0, event.count, kReplayed);
      break;
    case VtrEvent::Kind::kReplayed:
      extend(known(id), id, event.first, event.count, kReplayed);
      break;
    case VtrEvent::Kind::kCopied: {
      Sequence& own = known(id);
      if (event.first != own.length ||
          __builtin_add_overflow(event.first, event.count, &own.copied_end)) {
        throw_damaged(name(id) + " copies from position " + std::to_string(event.first) +
                      " on, expected " + std::to_string(own.length));
      }
      break;
    }
    case VtrEvent::Kind::kCounted: extend(known(id), id, event.first, event.count, kCounted); break;
    case VtrEvent::Kind::kLost:
      extend(known(id), id, event.first, event.count,
             static_cast<uint8_t>(kLost + static_cast<uint8_t>(event.reason)));
      break;
    case VtrEvent::Kind::kTruncated: {
      Sequence& sequence = known(id);
      if (event.first > sequence.length) {
        throw_damaged(name(id) + " is truncated to " + std::to_string(event.first) +
                      " positions, but has " + std::to_string(sequence.length));
      }
      while (sequence.length > event.first) {
        Run& last = sequence.runs.back();
        const int64_t undone = std::min(last.count, sequence.length - event.first);
        total_of(last.state) -= static_cast<uint64_t>(undone);
        totals_.discarded += static_cast<uint64_t>(undone);
        sequence.length -= undone;
        last.count -= undone;
        if (last.count == 0) sequence.runs.pop_back();
      }
      sequence.copied_end = std::min(sequence.copied_end, event.first);
      break;
    }
    case VtrEvent::Kind::kReleased:
      if (known(id).length != event.first) {
        throw_damaged(name(id) + " is released with " + std::to_string(event.first) +
                      " positions, but has " + std::to_string(known(id).length) + " with a state");
      }
      sequences_.erase(id);
      break;
  }
}

}  // namespace vitrine::audit

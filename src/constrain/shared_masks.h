// SPDX-License-Identifier: Apache-2.0
// Masks that grammars over one vocabulary share, by what is left of the language: a pattern or a
// format that several schemas have is walked through the vocabulary once.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace vitrine::constrain {

/// What an expression says, wherever it stands: 128 bits, the same in each pool of the process,
/// keyed by random numbers, so that no text can be made to collide with another.
struct Fingerprint {
  uint64_t low = 0, high = 0;
  bool operator==(const Fingerprint&) const = default;
};

/// Tokens that stay within a terminal from one of its states, and where others leave it.
struct TerminalMask {
  std::vector<uint32_t> words;     // tokens that stay inside or end where the terminal ends
  std::vector<uint32_t> branches;  // nodes where it ends and tokens go on
  uint32_t needed = 0;  // no token leaves more bytes than these to the terminal's shortest end
};

/// Thread-safe. Bounded: the masks used longest ago leave.
class SharedMasks {
 public:
  static constexpr size_t kDefaultBytes = size_t{64} << 20;

  /// Null where it is not there.
  std::shared_ptr<const TerminalMask> find(const Fingerprint& of);
  void add(const Fingerprint& of, std::shared_ptr<const TerminalMask> mask);
  /// 0 keeps none.
  void set_max_bytes(size_t bytes);
  struct Counts {
    uint64_t hits = 0, misses = 0, evictions = 0;
    size_t entries = 0, bytes = 0;
  };
  Counts counts() const;

 private:
  struct Entry {
    Fingerprint of;
    std::shared_ptr<const TerminalMask> mask;
    size_t bytes = 0;
  };
  struct Hash {
    size_t operator()(const Fingerprint& of) const { return of.low; }
  };
  void shrink(size_t bytes);

  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the one used last is first
  std::unordered_map<Fingerprint, std::list<Entry>::iterator, Hash> places_;
  size_t max_bytes_ = kDefaultBytes;
  Counts counts_;
};

}  // namespace vitrine::constrain

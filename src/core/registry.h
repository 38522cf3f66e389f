// SPDX-License-Identifier: Apache-2.0
// Private to the library: named things that static initialisers make known before main() and that
// are only looked up afterwards, so there is no lock.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "vitrine/core.h"

namespace vitrine::core {

/// `Key` is std::string, or an integer.
template <typename Key, typename Entry>
class Registry {
 public:
  /// `what` an entry is called in messages; a literal.
  explicit constexpr Registry(std::string_view what) : what_(what) {}

  /// False where the key has an entry already: an exception would end the process here, so that
  /// find() throws.
  bool add(const Key& key, const Entry& entry) {
    const auto [found, is_first] = slots_.try_emplace(key, Slot{entry});
    if (!is_first) found->second.is_twice = true;
    return is_first;
  }

  /// Null where nothing has that key. Throws kInternal where two entries have it.
  template <typename AnyKey>
  const Entry* find(const AnyKey& key) const {
    const auto found = slots_.find(key);
    if (found == slots_.end()) return nullptr;
    if (found->second.is_twice) {
      throw Error(ErrorKind::kInternal, std::string(what_) + " '" + text(found->first) +
                                            "' is registered twice; expected one file that does");
    }
    return &found->second.entry;
  }

  /// In the order of their keys.
  std::vector<Entry> entries() const {
    std::vector<Entry> all;
    for (const auto& [key, slot] : slots_) all.push_back(slot.entry);
    return all;
  }

 private:
  struct Slot {
    Entry entry;
    bool is_twice = false;
  };
  static std::string text(const Key& key) {
    if constexpr (std::is_integral_v<Key>) {
      return std::to_string(key);
    } else {
      return key;
    }
  }

  std::string_view what_;
  std::map<Key, Slot, std::less<>> slots_;
};

}  // namespace vitrine::core

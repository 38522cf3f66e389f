// SPDX-License-Identifier: Apache-2.0
// Private to the room: what writes values as text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime.h"

namespace vitrine::chat {

/// Appends and accounts for it.
class Writer {
 public:
  explicit Writer(Runtime& runtime) : runtime_(runtime) {}
  void add(std::string_view text) {
    runtime_.spend(1 + text.size());
    out_ += text;
  }
  std::string take() { return std::move(out_); }
  Runtime& runtime() { return runtime_; }

 private:
  Runtime& runtime_;
  std::string out_;
};

inline void append_hex(uint32_t number, int digits, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += kHex[number >> shift & 15];
}

}  // namespace vitrine::chat

// SPDX-License-Identifier: Apache-2.0
// Numbers in the rows of a `.vtr`'s columns.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "bytes.h"
#include "core/half_float.h"

namespace vitrine::audit {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename T>
uint8_t* put(uint8_t* out, T value) {
  std::memcpy(out, &value, sizeof value);
  return out + sizeof value;
}
template <typename T>
T take(const uint8_t*& in) {
  T value;
  std::memcpy(&value, in, sizeof value);
  in += sizeof value;
  return value;
}

/// Puts a value as float32 at level full (with one NaN alone, so that there is one encoding), else
/// as binary16.
inline uint8_t* put_value(uint8_t* out, float value, bool is_full) {
  if (!is_full) return put(out, to_half(value));
  return put(out, std::isnan(value) ? kNan : value);
}
inline float take_value(const uint8_t*& in, bool is_full) {
  return is_full ? take<float>(in) : from_half(take<uint16_t>(in));
}

[[noreturn]] inline void bad_id(const char* what, int64_t id, int64_t end) {
  throw_damaged(std::string(what) + " is " + std::to_string(id) + ", expected 0 to " +
                std::to_string(end - 1));
}

}  // namespace vitrine::audit

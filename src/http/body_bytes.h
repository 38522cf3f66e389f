// SPDX-License-Identifier: Apache-2.0
// A budget for the bodies of all clients together.
#pragma once

#include <cstdint>

#include "http/message.h"

namespace vitrine::http {

/// Takes the bytes of a body out of what all of them may have, on the I/O thread.
class BodyBytes {
 public:
  /// `under_way` counts those of all. Throws HttpError (503) where there is no room.
  BodyBytes(uint64_t& under_way, uint64_t bytes, uint64_t most)
      : under_way_(under_way), bytes_(bytes) {
    if (under_way_ + bytes > most) {
      throw HttpError(503, "too many large bodies are being read; expected another try later");
    }
    under_way_ += bytes_;
  }
  ~BodyBytes() { under_way_ -= bytes_; }
  BodyBytes(const BodyBytes&) = delete;
  BodyBytes& operator=(const BodyBytes&) = delete;

 private:
  uint64_t& under_way_;
  const uint64_t bytes_;
};

}  // namespace vitrine::http

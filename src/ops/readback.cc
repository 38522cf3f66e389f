// SPDX-License-Identifier: Apache-2.0
#include "ops/readback.h"

#include <cstring>

namespace vitrine::ops {

void Readback::copy(void* destination, const void* source, size_t bytes) {
  ++count_;
  std::memcpy(destination, source, bytes);
}

}  // namespace vitrine::ops

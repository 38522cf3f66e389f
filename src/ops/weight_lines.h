// SPDX-License-Identifier: Apache-2.0
// A packed matrix's parts one after the other, each beginning at a cache line.
#pragma once

#include <cstddef>

#include "kernels/cpu/cpu_kernels.h"

namespace vitrine::ops {

inline size_t whole_lines(size_t bytes) {
  constexpr size_t kLine = 64;
  return (bytes + kLine - 1) / kLine * kLine;
}

/// Lines of all three parts together.
inline size_t whole_lines(const kernels::WeightBytes& bytes) {
  return whole_lines(bytes.data) + whole_lines(bytes.scales) + whole_lines(bytes.offsets);
}

}  // namespace vitrine::ops

// SPDX-License-Identifier: Apache-2.0
// The intermediates of a plan.
#pragma once

#include <cstddef>
#include <vector>

#include "kv/mapped_memory.h"
#include "ops/plan.h"

namespace vitrine::engine {

/// The intermediates of one plan.
class PlanArena : public ops::PlanMemory {
 public:
  void* allocate(size_t bytes) override;
  size_t num_bytes() const { return num_bytes_; }

 private:
  std::vector<kv::MappedMemory> chunks_;
  size_t used_ = 0;  // of the last chunk
  size_t num_bytes_ = 0;
};

}  // namespace vitrine::engine

// SPDX-License-Identifier: Apache-2.0
// What a model takes beside what the machine has.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "machine_memory.h"
#include "vitrine/checkpoint.h"
#include "vitrine/engine.h"

namespace cli {

struct MemoryNeed {
  uint64_t total = 0;          // bytes of weights, keys and values, intermediates and tables
  int64_t positions = 0;       // of the context that these are for
  int64_t most = 0;            // positions of the longest context that fits; 0: none does
  int64_t limit = 0;           // that the model has
  uint64_t fixed = 0;          // bytes, whatever the context
  bool reads_weights = false;  // packed ones, which could be mapped
  bool has_experts = false;
  bool keeps_floats = false;  // keys and values as f32
  MachineMemory machine;
};

/// None on other devices than the CPU, or where the machine does not say what it has.
std::optional<MemoryNeed> find_need(const vitrine::Checkpoint& checkpoint,
                                    const vitrine::EngineOptions& asked,
                                    const vitrine::ModelPlan& made);

/// "no: ...; at most 123456 positions do (-c 123456)".
std::string fit_text(const MemoryNeed& need);
nlohmann::ordered_json fit_json(const MemoryNeed& need);

}  // namespace cli

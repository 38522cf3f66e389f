// SPDX-License-Identifier: Apache-2.0
// How much memory this process may have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace cli {

struct MachineMemory {
  uint64_t total = 0;  // bytes, of the machine or of the control group that holds this process
  uint64_t free = 0;   // of these, what the system can give without taking it from others
};

/// As /proc and the control group under `root` say it; none where they do not.
std::optional<MachineMemory> machine_memory(const std::string& root = "");

}  // namespace cli

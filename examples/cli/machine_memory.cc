// SPDX-License-Identifier: Apache-2.0
#include "machine_memory.h"

#include <algorithm>
#include <fstream>

namespace cli {

namespace {

// The number that stands first in a file; none for "max", or where there is no such file.
std::optional<uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

}  // namespace

std::optional<MachineMemory> machine_memory(const std::string& root) {
  std::ifstream facts(root + "/proc/meminfo");
  std::optional<uint64_t> total, free;
  std::string name, unit;
  for (uint64_t kilobytes = 0; facts >> name >> kilobytes && std::getline(facts, unit);) {
    if (name == "MemTotal:") total = kilobytes * 1024;
    if (name == "MemAvailable:") free = kilobytes * 1024;
  }
  if (!total || !free) return std::nullopt;
  MachineMemory memory{*total, *free};
  const std::string group = root + "/sys/fs/cgroup/";
  constexpr const char* kLimitAndUse[][2] = {
      {"memory.max", "memory.current"},
      {"memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"}};
  for (const auto& [limit_name, use_name] : kLimitAndUse) {
    const std::optional<uint64_t> limit = number_in(group + limit_name);
    if (!limit || *limit >= *total) continue;
    const uint64_t used = number_in(group + use_name).value_or(0);
    memory.total = *limit;
    memory.free = std::min(memory.free, *limit - std::min(*limit, used));
  }
  return memory;
}

}  // namespace cli

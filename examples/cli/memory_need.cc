// SPDX-License-Identifier: Apache-2.0
#include "memory_need.h"

#include <fmt/format.h>

#include <vector>

#include "common.h"
#include "vitrine/engine.h"

namespace cli {

namespace {

bool fits(const MemoryNeed& need) { return need.total <= need.machine.free; }

// Options that take less, without the context's.
std::string savings(const MemoryNeed& need) {
  std::vector<std::string> options;
  if (need.reads_weights) options.emplace_back("--mmap");
  if (need.reads_weights && need.has_experts) options.emplace_back("--expert-cache");
  if (need.keeps_floats) options.emplace_back("--kv-type f16");
  options.emplace_back("--kv-bytes");
  std::string text;
  for (size_t i = 0; i < options.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == options.size() ? " or " : ", ") + options[i];
  }
  return text;
}

}  // namespace

std::optional<MemoryNeed> find_need(const vitrine::Checkpoint& checkpoint,
                                    const vitrine::EngineOptions& asked,
                                    const vitrine::ModelPlan& made) {
  const std::optional<MachineMemory> machine = machine_memory();
  if (!machine || made.options.device.kind != vitrine::DeviceKind::kCpu) return std::nullopt;
  const vitrine::ModelSummary& model = made.summary;
  MemoryNeed need;
  need.machine = *machine;
  need.fixed = model.weight_bytes + model.arena_bytes;
  need.total =
      need.fixed + model.kv_bytes + model.table_bytes + made.options.draft_kv_bytes.value_or(0);
  need.positions = made.options.max_context;
  need.limit = model.max_position_embeddings;
  need.reads_weights = model.mapped_bytes == 0 && asked.expert_cache_bytes == 0;
  need.has_experts = model.num_experts > 0;
  need.keeps_floats = model.kv_codec == "f32";
  if (need.machine.free > need.fixed) {
    need.most = vitrine::longest_context(checkpoint, asked, need.machine.free - need.fixed);
  }
  return need;
}

std::string fit_text(const MemoryNeed& need) {
  const std::string free =
      fmt::format("in the {} that are free of this machine's {}", format_bytes(need.machine.free),
                  format_bytes(need.machine.total));
  if (need.most == 0) {
    return fmt::format("no, not {}: {} are taken whatever the context; see {}", free,
                       format_bytes(need.fixed), savings(need));
  }
  const std::string most = need.most == need.limit
                               ? fmt::format("{}, all that the model has", need.most)
                               : fmt::format("{} (-c {})", need.most, need.most);
  if (fits(need)) return fmt::format("yes, {}; the longest context that does: {}", free, most);
  return fmt::format("no, not {}; the longest context that does: {}; for more see {}", free, most,
                     savings(need));
}

nlohmann::ordered_json fit_json(const MemoryNeed& need) {
  return {{"need_bytes", need.total},
          {"positions", need.positions},
          {"machine_bytes", need.machine.total},
          {"free_bytes", need.machine.free},
          {"fits", fits(need)},
          {"most_positions", need.most}};
}

}  // namespace cli

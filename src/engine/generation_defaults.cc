// SPDX-License-Identifier: Apache-2.0
#include "vitrine/model.h"

#include <algorithm>

#include "checkpoint/fields.h"
#include "checkpoint/text.h"

namespace vitrine {

using checkpoint::Fields;

GenerationDefaults generation_defaults(const Checkpoint& checkpoint) {
  GenerationDefaults defaults;
  if (checkpoint.generation_config_json().empty()) return defaults;
  const std::string name = checkpoint.is_gguf() ? checkpoint.config_name()
                                                : checkpoint.path() + "/generation_config.json";
  const nlohmann::json json = parse_json_object(checkpoint.generation_config_json(), name);
  const Fields fields(json, name);
  constexpr double kMaxTemperature = 100;
  defaults.temperature = fields.number("temperature", 0, kMaxTemperature);
  if (const auto top_k = fields.integer("top_k", -1, INT32_MAX)) {
    defaults.top_k = static_cast<int32_t>(std::max<int64_t>(*top_k, 0));
  }
  defaults.top_p = fields.number("top_p", 0, 1);
  if (defaults.top_p == 0.0) fields.bad("top_p", "a number above 0, at most 1");
  return defaults;
}

}  // namespace vitrine

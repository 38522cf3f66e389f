#include "engine/model_checks.h"

#include <charconv>
#include <set>

#include "model/stored_matrix.h"

namespace vitrine::engine {

void require_no_further_layer(const Checkpoint& checkpoint, const ModelConfig& config) {
  constexpr std::string_view kPrefix = "model.layers.";
  for (const TensorInfo& info : checkpoint.tensors()) {
    if (!info.name.starts_with(kPrefix)) continue;
    int64_t layer = -1;
    const char* end = info.name.data() + info.name.size();
    std::from_chars(info.name.data() + kPrefix.size(), end, layer);
    if (layer < config.num_layers) continue;
    throw Error(ErrorKind::kBadFile, checkpoint.config_name() + ": field 'num_hidden_layers' is " +
                                         std::to_string(config.num_layers) +
                                         ", but the weight files hold '" + info.name +
                                         "'; expected the config of this model");
  }
}

void report_float_blocks(const Checkpoint& checkpoint, bool strict) {
  std::set<std::string_view> formats;
  int64_t matrices = 0;
  uint64_t stored = 0, widened = 0;
  for (const TensorInfo& info : checkpoint.tensors()) {
    constexpr std::string_view kWeight = ".weight";
    if (info.block_format == nullptr || !info.name.ends_with(kWeight)) continue;
    const std::string module = info.name.substr(0, info.name.size() - kWeight.size());
    if (model::find_packed_blocks(checkpoint, module) != nullptr) continue;
    formats.insert(info.block_format->name);
    ++matrices;
    stored += info.stored_bytes;
    widened += info.num_bytes;
  }
  if (matrices == 0) return;
  std::string names;
  for (std::string_view name : formats) names += (names.empty() ? "" : ", ") + std::string(name);
  const std::string message =
      checkpoint.path() + ": " + std::to_string(matrices) + " matrices in " + names +
      " have no fused kernels: they run as float32, which takes " +
      std::to_string(widened / 1000000) + " MB in place of " + std::to_string(stored / 1000000);
  if (strict) {
    throw Error(ErrorKind::kUnsupported,
                message + "; expected other types, or the option strict off");
  }
  log_message(LogLevel::kWarning, message);
}

}  // namespace vitrine::engine

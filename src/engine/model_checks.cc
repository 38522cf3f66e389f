// SPDX-License-Identifier: Apache-2.0
#include "engine/model_checks.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "checkpoint/column_order.h"
#include "engine/run/kv_choice.h"
#include "model/stored_matrix.h"
#include "ops/formed_input.h"

namespace vitrine::engine {

namespace {

// The module of a matrix in blocks of a GGUF file; empty for any other tensor.
std::string module_in_blocks(const TensorInfo& info) {
  constexpr std::string_view kWeight = ".weight";
  const bool is_matrix = info.block_format != nullptr && info.shape.size() == 2;
  if (!is_matrix || !info.name.ends_with(kWeight)) return "";
  return info.name.substr(0, info.name.size() - kWeight.size());
}

}  // namespace

bool has_packed_blocks(const Checkpoint& checkpoint) {
  return std::ranges::any_of(checkpoint.tensors(), [&](const TensorInfo& info) {
    const std::string module = module_in_blocks(info);
    return !module.empty() && model::find_packed_blocks(checkpoint, module) != nullptr;
  });
}

void require_no_surplus(const Checkpoint& checkpoint, const ModelConfig& config) {
  constexpr std::string_view kPrefix = "model.layers.", kExperts = ".experts.";
  const auto refuse = [&](const std::string& what, int64_t count, const TensorInfo& info) {
    throw Error(ErrorKind::kBadFile, checkpoint.config_name() + ": " + what + " is " +
                                         std::to_string(count) + ", but the weight files hold '" +
                                         info.name + "'; expected the config of this model");
  };
  for (const TensorInfo& info : checkpoint.tensors()) {
    if (!info.name.starts_with(kPrefix)) continue;
    const auto number_at = [&](size_t begin) {
      int64_t number = -1;
      std::from_chars(info.name.data() + begin, info.name.data() + info.name.size(), number);
      return number;
    };
    if (number_at(kPrefix.size()) >= config.num_layers + config.num_draft_layers) {
      refuse("field 'num_hidden_layers'", config.num_layers, info);
    }
    const size_t experts = info.name.find(kExperts);
    if (experts != std::string::npos && config.num_experts > 0 &&
        number_at(experts + kExperts.size()) >= config.num_experts) {
      refuse("the number of experts", config.num_experts, info);
    }
  }
}

namespace {

/// Matrices that take more memory than the file, since no kernel reads them as they are.
struct WidenedMatrices {
  std::set<std::string> formats;  // in the file, and what they become
  int64_t matrices = 0;
  uint64_t stored = 0, widened = 0;

  void add(const std::string& format, uint64_t from, uint64_t to) {
    formats.insert(format);
    ++matrices;
    stored += from;
    widened += to;
  }
};

void report_widened(const Checkpoint& checkpoint, const WidenedMatrices& found,
                    const std::string& as, bool strict) {
  if (found.matrices == 0) return;
  std::string names;
  for (const std::string& name : found.formats) names += (names.empty() ? "" : ", ") + name;
  const std::string message = checkpoint.path() + ": " + std::to_string(found.matrices) +
                              " matrices in " + names + " have no fused kernels: they run as " +
                              as + ", which takes " + std::to_string(found.widened / 1000000) +
                              " MB in place of " + std::to_string(found.stored / 1000000);
  if (strict) {
    throw Error(ErrorKind::kUnsupported,
                message + "; expected other types, or the option strict off");
  }
  log_message(LogLevel::kWarning, message);
}

/// Returns the modules that an op reads in the file's order alone.
std::set<std::string> modules_without_order(const ops::Graph& graph) {
  std::set<std::string> modules;
  for (const ops::OpNode& node : graph.nodes) {
    if (ops::takes_form(node)) continue;
    ops::WeightNames names;
    node.parameters->append_weights(names);
    modules.insert(names.products.begin(), names.products.end());
    for (const ops::NamedWeight& matrix : names.float_products) modules.insert(matrix.name);
    for (const ops::NamedWeight& table : names.tables) modules.insert(table.name);
  }
  return modules;
}

/// Reports the modules of a folder that are floats in memory, by the type that they become.
void report_widened_modules(const Checkpoint& checkpoint, const ops::Graph& graph, bool strict,
                            bool is_fused_cpu) {
  const std::set<std::string> without_order = modules_without_order(graph);
  WidenedMatrices to_f32, to_bf16;
  for (const TensorInfo& info : checkpoint.tensors()) {
    const std::string module = info.name.substr(0, info.name.rfind('.'));
    if (checkpoint.find_quantized(module) != &info) continue;
    if (!checkpoint.quantized_module(module)) continue;  // refused where it is used
    const auto tensors = checkpoint.find_quantized_tensors(module);
    if (!tensors->floats || tensors->widened_for.empty()) continue;
    const bool sorts = checkpoint::is_sortable(*tensors) && !without_order.contains(module);
    if (is_fused_cpu && (tensors->blocks != nullptr || sorts)) continue;
    const auto bytes =
        static_cast<uint64_t>(tensors->rows * tensors->cols) * dtype_size(*tensors->floats);
    (*tensors->floats == DType::kF32 ? to_f32 : to_bf16)
        .add(std::string(tensors->format) + " (" + std::string(tensors->widened_for) + ")",
             tensors->file_bytes(), bytes);
  }
  report_widened(checkpoint, to_f32, "float32", strict);
  report_widened(checkpoint, to_bf16, "bfloat16", strict);
}

}  // namespace

void report_float_blocks(const Checkpoint& checkpoint, const ops::Graph& graph, bool strict,
                         bool is_fused_cpu) {
  WidenedMatrices found;
  for (const TensorInfo& info : checkpoint.tensors()) {
    const std::string module = module_in_blocks(info);
    if (module.empty() || model::find_packed_blocks(checkpoint, module) != nullptr) continue;
    found.add(std::string(info.block_format->name), info.stored_bytes, info.num_bytes);
  }
  report_widened(checkpoint, found, "float32", strict);
  if (checkpoint.is_quantized()) report_widened_modules(checkpoint, graph, strict, is_fused_cpu);
}

void require_adapter(int adapter, int count) {
  if (adapter >= -1 && adapter < count) return;
  throw Error(
      ErrorKind::kInvalidArgument,
      "adapter " + std::to_string(adapter) + " is not there; expected -1 (none)" +
          (count == 0 ? ", for there are no adapters" : " to " + std::to_string(count - 1)));
}

void describe_model(const ModelConfig& config, const EngineOptions& options,
                    ModelSummary& summary) {
  summary.device = options.device.name();
  summary.kv_codec = kv_codec_name(options);
  summary.architecture = config.model_type;
  summary.num_layers = static_cast<int>(config.num_layers);
  summary.hidden_size = static_cast<int>(config.hidden_size);
  summary.vocab_size = static_cast<int>(config.vocab_size);
  summary.max_position_embeddings = static_cast<int>(config.max_position_embeddings);
  summary.num_attention_heads = static_cast<int>(config.num_heads);
  summary.num_key_value_heads = static_cast<int>(config.num_kv_heads);
  summary.head_dim = static_cast<int>(config.head_dim);
  summary.latent_size = config.is_latent() ? static_cast<int>(config.stored_key_width()) : 0;
  summary.num_experts = static_cast<int>(config.num_experts);
  summary.num_experts_per_token = static_cast<int>(config.num_experts_per_token);
  summary.moe_intermediate_size = static_cast<int>(config.moe_intermediate_size);
  summary.shared_expert_intermediate_size =
      static_cast<int>(config.shared_expert_intermediate_size);
  for (int64_t id : config.eos_token_ids) {
    summary.eos_token_ids.push_back(static_cast<int32_t>(id));
  }
}

}  // namespace vitrine::engine

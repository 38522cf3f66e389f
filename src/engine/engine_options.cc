// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_options.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <thread>

#include "engine/run/engine_threads.h"
#include "engine/run/features.h"
#include "engine/run/kv_budget.h"
#include "engine/run/kv_choice.h"
#include "kernels/cpu/cpu_kernels.h"
#include "ops/attribution.h"
#include "ops/hidden_state.h"
#include "ops/taps.h"

namespace vitrine::engine {

namespace {

void require_option(bool good, const std::string& name, int64_t found,
                    const std::string& expected) {
  if (good) return;
  throw Error(ErrorKind::kInvalidArgument, "engine option '" + name + "' is " +
                                               std::to_string(found) + "; expected " + expected);
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// What the fused kernels of a CPU have room for; `head_dim`: of the widest heads.
void require_head_room(const Checkpoint& checkpoint, const ModelConfig& config, int64_t head_dim) {
  const auto require = [&](std::string_view what, int64_t found, int64_t most) {
    if (found <= most) return;
    throw Error(ErrorKind::kUnsupported, checkpoint.config_name() + ": " + std::string(what) +
                                             " is " + std::to_string(found) +
                                             "; expected at most " + std::to_string(most) +
                                             ", which the fused kernels take, or --kernels "
                                             "reference");
  };
  if (!config.is_latent()) {
    return require("'head_dim', the width of an attention head,", head_dim, kernels::kMaxHeadDim);
  }
  require("'kv_lora_rank'", config.kv_lora_rank, kernels::kMaxLatentValue);
  require("'kv_lora_rank' + 'qk_rope_head_dim'", config.stored_key_width(), kernels::kMaxLatentKey);
}

// Ascending, none twice.
void resolve_layers(std::vector<int>& layers, const std::string& name, int num_layers) {
  for (const int layer : layers) {
    require_option(layer >= 0 && layer <= num_layers, name, layer,
                   "layers from 0 to " + std::to_string(num_layers));
  }
  std::ranges::sort(layers);
  layers.erase(std::ranges::unique(layers).begin(), layers.end());
}

void resolve_hidden_states(EngineOptions& options, int num_layers) {
  resolve_layers(options.hidden_state_layers, "hidden_state_layers", num_layers);
  if (!options.hidden_state_layers.empty() && options.audit_level != AuditLevel::kFull) {
    throw Error(ErrorKind::kInvalidArgument,
                "engine option 'hidden_state_layers' needs audit_level full; expected it, or no "
                "layers");
  }
}

void resolve_hidden_states_only(EngineOptions& options) {
  if (!options.hidden_states_only) return;
  if (options.keep_logits || options.attribution) {
    throw Error(ErrorKind::kInvalidArgument,
                std::string("engine option 'hidden_states_only' leaves no logits for '") +
                    (options.keep_logits ? "keep_logits" : "attribution") +
                    "'; expected one of the two");
  }
  options.keep_hidden_state = true;
  options.sample_on_device = false;
}

void resolve_taps(EngineOptions& options, ops::Graph& graph) {
  resolve_layers(options.feature_layers, "feature_layers", graph.num_layers);
  const bool has_features = !options.feature_layers.empty();
  if ((has_features || !options.taps.empty()) && runs_fused_on_cuda(options)) {
    const std::string what = has_features
                                 ? "'feature_layers', which drafters name that read the model's "
                                   "layers (eagle3, peagle, medusa, mtp),"
                                 : "'taps'";
    throw Error(ErrorKind::kUnsupported, "engine option " + what +
                                             " is for the CPU and the reference path; expected "
                                             "none, --kernels reference or --device cpu");
  }
  ops::add_taps(graph, all_taps(graph, options));
}

}  // namespace

bool runs_fused_on_cuda(const EngineOptions& options) {
  return options.device.kind == DeviceKind::kCuda && options.kernels == KernelPath::kFused;
}

ModelConfig described_config(ModelConfig config, const EngineOptions& options) {
  config.max_position_embeddings =
      std::max<int64_t>(config.max_position_embeddings, options.max_context);
  return config;
}

EngineOptions resolve_options(EngineOptions options, const Checkpoint& checkpoint,
                              const ModelConfig& config, ops::Graph& graph) {
  const int64_t limit = config.max_position_embeddings;
  if (options.max_context == 0) options.max_context = static_cast<int>(limit);
  require_option(options.max_context > 0 && options.max_context <= limit, "max_context",
                 options.max_context, "1 to the model's " + std::to_string(limit));
  require_option(options.max_sequences > 0 && options.max_sequences <= 4096, "max_sequences",
                 options.max_sequences, "1 to 4096");
  if (options.max_logit_rows == 0) options.max_logit_rows = options.max_sequences;
  constexpr int kMaxStates = 1 << 20;
  require_option(options.max_states == 0 || (options.max_states >= options.max_sequences &&
                                             options.max_states <= kMaxStates),
                 "max_states", options.max_states,
                 "0, or max_sequences, " + std::to_string(options.max_sequences) + ", to " +
                     std::to_string(kMaxStates));
  require_option(options.max_step_tokens > 0 && options.max_step_tokens <= 16384, "max_step_tokens",
                 options.max_step_tokens, "1 to 16384");
  require_option(options.max_logit_rows > 0 && options.max_logit_rows <= 16384, "max_logit_rows",
                 options.max_logit_rows, "1 to 16384");
  require_option(
      options.kv_block_size >= 0 && options.kv_block_size <= 256 && options.kv_block_size % 16 == 0,
      "kv_block_size", options.kv_block_size, "0, or a multiple of 16 up to 256");
  if (options.rope_frequencies != DType::kF32 && options.rope_frequencies != DType::kBF16) {
    throw Error(ErrorKind::kInvalidArgument, "engine option 'rope_frequencies' is " +
                                                 std::string(dtype_name(options.rope_frequencies)) +
                                                 "; expected F32 or BF16");
  }
  if (options.activation_dtype != DType::kI8 && options.activation_dtype != DType::kBF16 &&
      options.activation_dtype != DType::kF8E4M3) {
    throw Error(ErrorKind::kInvalidArgument, "engine option 'activation_dtype' is " +
                                                 std::string(dtype_name(options.activation_dtype)) +
                                                 "; expected I8, BF16 or F8_E4M3");
  }
  if (options.shared_threads != nullptr) options.threads = options.shared_threads->pool.threads();
  if (options.threads == 0) options.threads = usable_cores();
  require_option(options.threads > 0 && options.threads <= 256, "threads", options.threads,
                 "1 to 256");
  if (!options.kernels) {
    options.kernels =
        options.device.kind == DeviceKind::kMps ? KernelPath::kReference : KernelPath::kFused;
  }
  if (options.kernels == KernelPath::kFused && options.device.kind == DeviceKind::kMps) {
    throw Error(ErrorKind::kUnsupported, "device '" + options.device.name() +
                                             "' has no fused kernels in this version; use "
                                             "--kernels reference");
  }
  if (options.activation_dtype != DType::kI8 && !runs_fused_on_cuda(options)) {
    throw Error(ErrorKind::kUnsupported,
                "engine option 'activation_dtype' is " +
                    std::string(dtype_name(options.activation_dtype)) +
                    ", which CUDA's fused kernels alone have; use I8 (--activation-type int8), or "
                    "--device cuda without --kernels reference");
  }
  resolve_kv_codecs(options, checkpoint, graph);
  const bool is_fused_cpu =
      options.device.kind == DeviceKind::kCpu && options.kernels == KernelPath::kFused;
  int64_t head_dim = graph.head_dim;
  for (const ops::KvShape& shape : graph.kv_shapes) head_dim = std::max(head_dim, shape.head_dim);
  if (is_fused_cpu) require_head_room(checkpoint, config, head_dim);
  if (options.expert_cache_bytes > 0 && options.kernels == KernelPath::kReference) {
    throw Error(
        ErrorKind::kUnsupported,
        "engine option 'expert_cache_bytes' needs the fused kernels; expected it to be 0, or "
        "another device or kernels");
  }
  if (options.mmap_weights && options.kernels == KernelPath::kReference) {
    throw Error(ErrorKind::kUnsupported,
                "engine option 'mmap_weights' needs the fused kernels; expected it to be false, or "
                "another device or kernels");
  }
  if (options.mmap_weights && options.expert_cache_bytes > 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "engine options 'mmap_weights' and 'expert_cache_bytes' are both given; expected "
                "one: experts are mapped, or read");
  }
  if (options.expert_norms && !is_fused_cpu) {
    throw Error(ErrorKind::kUnsupported,
                "engine option 'expert_norms' is recorded by the CPU's fused kernels; expected it "
                "to be false, or --device cpu without --kernels reference");
  }
  resolve_hidden_states_only(options);
  if (options.attribution) ops::add_attribution(graph);
  resolve_hidden_states(options, graph.num_layers);
  ops::add_hidden_states(graph, options.hidden_state_layers);
  resolve_taps(options, graph);
  resolve_kv_budget(options, graph);
  return options;
}

}  // namespace vitrine::engine

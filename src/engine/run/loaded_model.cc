// SPDX-License-Identifier: Apache-2.0
#include "engine/run/loaded_model.h"

#include "engine/model_checks.h"
#include "engine/run/audit_layout.h"
#include "engine/run/device_executor.h"
#include "model/architecture.h"
#include "model/draft_layer.h"
#include "model/tensor_use.h"

namespace vitrine::engine {

namespace {

// For a draft layer `config` becomes that of a model of this layer alone.
ops::Graph build_graph(const Checkpoint& checkpoint, const LoadRequest& request, bool is_lenient,
                       ModelConfig& config) {
  if (request.is_draft_layer()) {
    model::DraftLayer layer = model::build_draft_layer(checkpoint, config, request.draft_layer);
    config = std::move(layer.config);
    return std::move(layer.graph);
  }
  ops::Graph graph = model::build_graph(checkpoint, config);
  if (!is_lenient) require_no_surplus(checkpoint, config);
  return graph;
}

// The config that the context is checked by: nobody runs what is only described.
ModelConfig limited_config(const LoadRequest& request, const EngineOptions& options,
                           const ModelConfig& config) {
  return request.reading == LoadRequest::Reading::kDescribe ? described_config(config, options)
                                                            : config;
}

}  // namespace

LoadedModel::LoadedModel(const std::string& path, const EngineOptions& given,
                         const LoadRequest& request)
    : checkpoint(Checkpoint::open(path)),
      config(parse_model_config(checkpoint)),
      graph(build_graph(checkpoint, request, given.lenient_weights, config)),
      options(resolve_options(given, checkpoint, limited_config(request, given, config), graph)),
      layout(make_audit_layout(graph, options.audit_mode, options.audit_level, request.record_rows,
                               options.expert_norms)),
      kv_blocks(find_kv_blocks(options, graph)),
      pool(
          request.is_load() ? pool_sizes(options, graph, kv_blocks) : no_pool(options),
          [this](int32_t from, int32_t to) { executor->copy_block(from, to); },
          [this](int32_t from, int32_t to) { executor->copy_state(from, to); },
          [this](int32_t from, int32_t to) { executor->copy_window_block(from, to); }) {
  using Reading = LoadRequest::Reading;
  const bool is_fused_cpu =
      options.kernels == KernelPath::kFused && options.device.kind == DeviceKind::kCpu;
  if (!options.adapters.empty() || !options.lora.empty()) {
    adapters.emplace(options.adapters, options.lora, checkpoint, graph, is_fused_cpu);
  }
  if (!request.is_draft_layer()) {
    tensor_use = model::find_tensor_use(checkpoint, config, graph, options.lenient_weights);
    if (request.reading != Reading::kCheck) {
      report_float_blocks(checkpoint, graph, options.strict, is_fused_cpu);
    }
  }
  const bool knows_unread = is_fused_cpu && options.expert_cache_bytes == 0;
  const bool weights_read =
      request.is_load() || (request.reading == Reading::kDescribe && !knows_unread);
  ExecutorInputs inputs{checkpoint,
                        config,
                        graph,
                        layout,
                        options,
                        kv_blocks.full,
                        adapters ? &*adapters : nullptr,
                        weights_read,
                        request.is_load()};
  inputs.num_states = num_states(options, graph);
  inputs.num_window_blocks = kv_blocks.windowed;
  inputs.is_windowed = kv_blocks.is_windowed;
  inputs.table_stride = pool.table_stride();
  inputs.joint = request.joint;
  if (!options.taps.empty() || !options.feature_layers.empty()) {
    inputs.taps = &taps.emplace(graph, all_taps(graph, options));
    features.reserve(options, config.hidden_size);
    taps->reader = &features;
  }
  threads = options.shared_threads;
  // Other paths have threads of their own, and an occupant as well.
  if (threads == nullptr) {
    threads = std::make_shared<EngineThreads>(is_fused_cpu ? options.threads : 1);
  }
  inputs.threads = threads.get();
  executor = options.kernels == KernelPath::kReference ? make_reference_executor(inputs)
             : options.device.kind == DeviceKind::kCpu ? make_fused_executor(inputs)
                                                       : make_device_executor(inputs);
  checkpoint.check_unchanged();  // some of what was read might be of another model
  summary.path = path;
  describe_model(config, options, summary);
  executor->describe(summary);
  if (!request.is_load()) add_context(options, graph, kv_blocks, summary);
  if (request.is_load()) summary.table_bytes += pool.num_bytes();
}

bool LoadedModel::samples_on_device() const {
  const bool is_device = options.device.kind != DeviceKind::kCpu;
  return options.sample_on_device.value_or(is_device) &&
         (is_device || options.kernels == KernelPath::kReference);
}

}  // namespace vitrine::engine

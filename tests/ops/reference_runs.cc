// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/reference_runs.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/test_data.h"
#include "vitrine/checkpoint.h"

namespace vitrine::testing_support {

std::vector<std::string> oracle_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(test_data("oracles"))) {
    const std::string name = entry.path().filename().string();
    // Its layers are of two kinds, so that none can be repeated.
    if (!name.starts_with("gemma4")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void write_stretched_checkpoint(const std::string& folder, const std::string& out, int num_layers,
                                const std::string& model_type) {
  const Checkpoint checkpoint = Checkpoint::open(folder);
  std::filesystem::create_directories(out);
  auto config = nlohmann::json::parse(checkpoint.config_json());
  config["num_hidden_layers"] = num_layers;
  config.erase("layer_types");
  // Those that are repeated: of lfm2_moe a convolution and attention, both with experts.
  const bool has_convolutions = config.contains("conv_L_cache");
  const int first = has_convolutions ? 1 : 0;
  if (has_convolutions) {
    config["num_dense_layers"] = 0;
    config["layer_types"] = std::vector<std::string>();
  }
  if (config.contains("no_rope_layers")) config["no_rope_layers"] = std::vector<int>();
  if (config.value("first_k_dense_replace", 0) == 1) config["mlp_only_layers"] = std::vector<int>();
  if (config.contains("mlp_layer_types")) config["mlp_layer_types"] = std::vector<std::string>();
  const bool has_states = config.contains("linear_num_key_heads");
  if (has_states) config["layer_types"] = std::vector<std::string>();
  for (int layer = 0; layer < num_layers; ++layer) {  // as the two layers that are repeated
    if (config.contains("no_rope_layers")) config["no_rope_layers"].push_back(1 - layer % 2);
    if (config.contains("mlp_layer_types")) {
      config["mlp_layer_types"].push_back(layer % 2 == 0 ? "sparse" : "dense");
    }
    if (has_convolutions) {
      config["layer_types"].push_back(layer % 2 == 0 ? "conv" : "full_attention");
    }
    if (has_states) {
      config["layer_types"].push_back(layer % 2 == 0 ? "linear_attention" : "full_attention");
      if (layer % 2 == 1 && config.contains("mlp_only_layers") && layer > 1) {
        config["mlp_only_layers"].push_back(layer);
      }
    }
    if (config.contains("mlp_only_layers") && config.contains("first_k_dense_replace") &&
        layer % 2 == 0) {
      config["mlp_only_layers"].push_back(layer);
    }
  }
  if (!model_type.empty()) config["model_type"] = model_type;
  write_file_atomically(out + "/config.json", config.dump());

  const std::string prefix = "model.layers.";
  std::vector<std::pair<std::string, const TensorInfo*>> tensors;
  for (const TensorInfo& info : checkpoint.tensors()) {
    if (!info.name.starts_with(prefix)) {
      tensors.emplace_back(info.name, &info);
      continue;
    }
    const size_t dot = info.name.find('.', prefix.size());
    const int source = std::stoi(info.name.substr(prefix.size(), dot - prefix.size()));
    for (int layer = 0; layer < num_layers; ++layer) {
      // Two, so that layers of alternating kinds stay where their config expects them.
      if (layer % 2 != source - first) continue;
      tensors.emplace_back(prefix + std::to_string(layer) + info.name.substr(dot), &info);
    }
  }
  SafetensorsWriter writer(out + "/model.safetensors");
  for (const auto& [name, info] : tensors) writer.declare(name, info->dtype, info->shape);
  writer.begin();
  for (const auto& [name, info] : tensors) {
    std::vector<std::byte> bytes(info->num_bytes);
    checkpoint.read(*info, bytes);
    writer.write(name, bytes);
  }
  writer.finish();
}

namespace {

// Callers are indices into the vector that holds them.
void append(std::vector<DispatchedOp>& all, const std::vector<DispatchedOp>& ops) {
  const int offset = static_cast<int>(all.size());
  for (DispatchedOp op : ops) {
    if (op.caller >= 0) op.caller += offset;
    all.push_back(std::move(op));
  }
}

}  // namespace

void LastRecordSink::open(const AuditLayout& new_layout, size_t max_record_bytes) {
  layout = new_layout;
  buffer_.resize(max_record_bytes);
}

std::byte* LastRecordSink::reserve(size_t num_bytes) {
  record_bytes_ = num_bytes;
  return buffer_.data();
}

std::vector<TokenRecord> LastRecordSink::decoded() const {
  return decode_pass(layout, std::span(buffer_).first(record_bytes_));
}

RecordedRun record_reference_run(const std::string& folder, AuditMode mode, AuditLevel level,
                                 const Device& device, bool attribution) {
  RecordedRun run;
  EngineOptions options;
  options.device = device;
  options.kernels = KernelPath::kReference;
  options.threads = 1;
  options.max_context = 64;
  options.max_sequences = 3;
  options.max_logit_rows = 16;
  options.audit_mode = mode;
  options.audit_level = level;
  const ModelFacts config = read_model_facts(Checkpoint::open(folder));
  options.attribution = attribution;
  options.sample_on_device = true;
  if (attribution && level == AuditLevel::kFull) {
    for (int layer = 0; layer <= config.num_layers; ++layer)
      options.hidden_state_layers.push_back(layer);
  }
  std::unique_ptr<Engine> engine;
  {
    const DispatchRecorder recorder;
    engine = Engine::load(folder, options);
    run.load = recorder.ops();
  }
  LastRecordSink sink;
  if (mode != AuditMode::kNone) engine->set_audit_sink(&sink);
  auto pass = [&](std::vector<StepInput> inputs) {
    const uint64_t before = engine->readback_count();
    const DispatchRecorder recorder;
    engine->step(inputs);
    run.own_calls.push_back(recorder.num_own_calls());
    run.all_calls.push_back(recorder.ops().size());
    append(run.passes, recorder.ops());
    run.readbacks.push_back(engine->readback_count() - before);
    if (mode == AuditMode::kNone) return;
    const std::vector<TokenRecord> records = sink.decoded();
    run.records.insert(run.records.end(), records.begin(), records.end());
  };
  const std::vector<int32_t> prompt = {5, 17, 3, 99, 42, 7, 64};
  const std::span<const int32_t> ids(prompt);
  const SequenceId first = engine->create_sequence(), second = engine->create_sequence();
  StepInput whole{first, ids.first(5)}, last{second, ids.last(3)};
  whole.rows = StepInput::Rows::kAll;
  pass({whole, last});
  pass({StepInput{first, ids.last(2)}, StepInput{second, ids.first(4)}});
  SequenceId third;
  {
    const DispatchRecorder recorder;
    third = engine->fork(first);
    append(run.passes, recorder.ops());
  }
  pass({StepInput{first, ids.first(1)}, StepInput{second, ids.last(1)},
        StepInput{third, ids.subspan(2, 1)}});
  pass({StepInput{second, ids.first(1)}});
  run.num_plain_ops = run.passes.size();
  // Routes that are forced: calls that only such a step makes.
  std::vector<ForcedRoute> routes;
  for (const AuditLayout::Layer& layer : engine->audit_layout().layers) {
    for (int32_t slot = 0; slot < layer.top_k; ++slot) {
      routes.push_back({0, layer.layer, slot, slot == 0 ? 0.5F : ForcedRoute::kRouterWeight});
    }
  }
  StepInput forced{second, ids.first(2)};
  forced.routes = routes;
  {
    const DispatchRecorder recorder;
    engine->step({&forced, 1});
    append(run.passes, recorder.ops());
  }
  if (mode == AuditMode::kNaive) return run;  // it chooses on the host
  // A choice by every stage that has a device form.
  SamplerOptions every{.temperature = 0.8F, .top_k = 40, .top_p = 0.95F, .min_p = 0.001F};
  every.typical_p = 0.99F;
  every.top_n_sigma = 20;
  every.xtc_probability = 1;
  every.dynamic_temperature = 0.3F;
  every.repetition_penalty = 1.1F;
  every.dry_multiplier = 0.5F;
  every.dry_allowed_length = 1;
  every.logit_bias = {{3, 0.5F}};
  every.ban = {{5}};
  SamplerPipeline sampler = SamplerPipeline::from_options(every);
  const auto vocabulary = static_cast<size_t>(engine->summary().vocab_size);
  std::vector<uint32_t> mask((vocabulary + 31) / 32, 0x7fffffff);
  StepInput sampled{second, ids.first(3)};
  sampled.sampler = &sampler;
  sampled.allowed_tokens = mask;
  {
    const DispatchRecorder recorder;
    engine->step({&sampled, 1});
    append(run.passes, recorder.ops());
  }
  return run;
}

}  // namespace vitrine::testing_support

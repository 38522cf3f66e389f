#include "replay_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "audit_rerun.h"
#include "federate.h"

namespace cli {

namespace {

using vitrine::ErrorKind;

constexpr const char* kIsaVariable = "VITRINE_CPU_ISA";

bool is_attributed(const vitrine::TokenRecord& record) {
  return !attributions_of(record.prediction).empty();
}

bool is_reference(const vitrine::EngineOptions& options) {
  return options.kernels == vitrine::KernelPath::kReference ||
         options.device.kind != vitrine::DeviceKind::kCpu;
}

/// A value of the log's head that this version has another of, or none.
std::string logged_choice(const Run& run, const std::string& name, const std::string& value,
                          std::initializer_list<const char*> known) {
  if (std::ranges::find(known, value) != known.end()) return value;
  refuse(fmt::format("{}: {} '{}'; this version knows {}", run.path, name, plain(value),
                     fmt::join(known, ", ")));
}

vitrine::EngineOptions replay_options(const Run& run, const AuditArguments& arguments,
                                      const vitrine::ModelConfig& config, bool is_other_model) {
  DeviceOptions device = arguments.device;
  if (device.device.empty()) device.device = run.header.device;
  if (device.kernels.empty() && run.header.kernels == "reference") device.kernels = "reference";
  // CUDA's fused kernels are for who asks for them: whoever made the log did.
  const bool is_cuda = device.device.starts_with("cuda") && run.header.device.starts_with("cuda");
  if (device.kernels.empty() && is_cuda && run.header.kernels == "fused") device.kernels = "fused";
  for (const auto& [name, value] : run.header.engine) {
    const auto take = [&](const char* what, std::string& given,
                          std::initializer_list<const char*> known) {
      if (name == what && given.empty()) given = logged_choice(run, name, value, known);
    };
    take("rope_frequencies", device.rope_frequencies, {"f32", "bf16"});
    take("kv_type", device.kv_type, {"f32", "f16", "bf16"});
    take("activation_type", device.activation_type, {"int8", "bf16", "fp8"});
  }
  if (device.threads == 0) device.threads = std::clamp(run.header.threads, 1, 256);
  vitrine::EngineOptions options = device.engine_options();
  const RerunSizes sizes = rerun_sizes(run);
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  options.max_context = static_cast<int>(std::min(sizes.context, kMost));
  options.max_sequences = static_cast<int>(std::min(sizes.sequences, kMost));
  options.max_step_tokens = std::min(options.max_context, kRerunStepTokens);
  options.max_logit_rows = std::min(options.max_step_tokens, kRerunRows);
  options.keep_logits = !is_other_model && !run.header.sampler.empty();
  options.attribution = !is_other_model && std::ranges::any_of(run.records, is_attributed) &&
                        (run.federation.specialists.empty() || !is_reference(options));
  // Where routes are forced on another model, its routers' own choice is in their probabilities.
  options.audit_level = run.level == "full" || is_other_model ? vitrine::AuditLevel::kFull
                                                              : vitrine::AuditLevel::kStandard;
  if (run.level == "full" && !is_other_model) {
    // Of a federation the first specialist's stand first; every specialist has the same ones.
    const auto leaving = static_cast<int>(run.layer_numbers.size());
    for (const int layer : run.hidden_state_layers) {
      if (layer < config.num_layers) options.hidden_state_layers.push_back(layer);
      if (layer != leaving) continue;  // leaves the first specialist's last layer
      options.hidden_state_layers.push_back(static_cast<int>(config.num_layers));
    }
  }
  return options;
}

/// With the instruction set that the log names, where this machine has it and the user chose none.
template <typename Load>
auto load_as_logged(const Run& run, const vitrine::EngineOptions& options, Load load) {
  const char* chosen = std::getenv(kIsaVariable);
  const bool forces = (chosen == nullptr || *chosen == '\0') && run.header.kernels == "fused" &&
                      options.kernels == vitrine::KernelPath::kFused &&
                      options.device.kind == vitrine::DeviceKind::kCpu &&
                      run.header.device == "cpu";
  if (!forces) return load();
  ::setenv(kIsaVariable, run.header.isa.c_str(), 1);
  try {
    return load();
  } catch (const vitrine::Error& error) {
    if (error.kind() != ErrorKind::kUnavailable && error.kind() != ErrorKind::kInvalidArgument) {
      throw;
    }
    ::unsetenv(kIsaVariable);
    return load();
  }
}

}  // namespace

std::string other_model(const vitrine::LogHeader& log, const vitrine::Checkpoint& checkpoint,
                        HashCache cache) {
  return first_other_file(log.hashes, file_hashes(checkpoint, cache));
}

std::string other_federation(const vitrine::LogHeader& log, const vitrine::FederationSpec& spec,
                             HashCache cache) {
  vitrine::LogHeader here;
  add_members(spec, here);
  FileHashes found = file_hashes(open_model(spec.specialists[0].model), cache);
  found.insert(found.end(), here.hashes.begin(), here.hashes.end());
  return first_other_file(log.hashes, found);
}

std::string model_problem(const vitrine::LogHeader& log, const std::string& path) {
  if (log.hashes.empty()) return "the log names no hashes: which model made it cannot be checked";
  if (logged_federation(log).empty()) {
    return other_model(log, open_model(path), HashCache::kRefresh);
  }
  const vitrine::FederationSpec spec = vitrine::FederationSpec::load(path);
  spec.check_members();
  return other_federation(log, spec, HashCache::kRefresh);
}

std::string logged_federation(const vitrine::LogHeader& log) {
  for (const auto& [name, value] : log.engine) {
    if (name == "federation") return value;
  }
  return "";
}

std::unique_ptr<vitrine::Engine> load_replayed(const Run& run, const std::string& path,
                                               const AuditArguments& arguments,
                                               bool is_other_model) {
  const vitrine::ModelConfig config = vitrine::parse_model_config(open_model(path));
  const vitrine::EngineOptions options = replay_options(run, arguments, config, is_other_model);
  return load_as_logged(run, options, [&] { return vitrine::Engine::load(path, options); });
}

std::unique_ptr<vitrine::Federation> load_replayed(const Run& run,
                                                   const vitrine::FederationSpec& spec,
                                                   const AuditArguments& arguments) {
  const vitrine::ModelConfig config =
      vitrine::parse_model_config(open_model(spec.specialists[0].model));
  const vitrine::EngineOptions options = replay_options(run, arguments, config, false);
  return load_as_logged(run, options, [&] { return vitrine::Federation::load(spec, options); });
}

}  // namespace cli

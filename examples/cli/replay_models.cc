// SPDX-License-Identifier: Apache-2.0
#include "replay_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <set>

#include "audit_rerun.h"
#include "federate.h"
#include "lora_options.h"

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
                          const std::vector<std::string>& known) {
  if (std::ranges::find(known, value) != known.end()) return value;
  refuse(fmt::format("{}: {} '{}'; this version knows {}", run.path, name, plain(value),
                     fmt::join(known, ", ")));
}

/// `depths`: how many layers the model has, or each specialist of a federation.
vitrine::EngineOptions replay_options(const Run& run, const AuditArguments& arguments,
                                      const std::vector<int64_t>& depths, bool is_other_model) {
  DeviceOptions device = arguments.device;
  if (device.device.empty()) device.device = run.header.device;
  if (device.kernels.empty() && run.header.kernels == "reference") device.kernels = "reference";
  for (const auto& [name, value] : run.header.engine) {
    const auto take = [&](const char* what, std::string& given,
                          const std::vector<std::string>& known) {
      if (name == what && given.empty()) given = logged_choice(run, name, value, known);
    };
    take("rope_frequencies", device.rope_frequencies, {"f32", "bf16"});
    take("kv_type", device.kv_type, vitrine::kv_codec_names());
    take("activation_type", device.activation_type, {"int8", "bf16", "fp8"});
  }
  if (device.kv_type.empty()) device.kv_type = "f32";  // an older log names none: it was that
  if (device.threads == 0) device.threads = std::clamp(run.header.threads, 1, 256);
  vitrine::EngineOptions options = device.engine_options();
  if (!is_other_model) options.lora = logged_lora(run.header);
  const RerunSizes sizes = rerun_sizes(run);
  constexpr int64_t kMax = std::numeric_limits<int>::max();
  options.max_context = static_cast<int>(std::min(sizes.context, kMax));
  options.max_sequences = static_cast<int>(std::min(sizes.sequences, kMax));
  options.max_step_tokens = std::min(options.max_context, kRerunStepTokens);
  options.max_logit_rows = std::min(options.max_step_tokens, kRerunRows);
  options.keep_logits = !is_other_model && !run.header.sampler.empty();
  options.attribution = !is_other_model && std::ranges::any_of(run.records, is_attributed) &&
                        (run.federation.specialists.empty() || !is_reference(options));
  // Where routes are forced on another model, its routers' own choice is in their probabilities.
  options.audit_level = run.level == "full" || is_other_model ? vitrine::AuditLevel::kFull
                                                              : vitrine::AuditLevel::kStandard;
  if (run.level == "full" && !is_other_model) {
    // A federation's specialists have their layers one after the other, and behind all of them what
    // leaves each one's last.
    std::set<int> layers;
    int64_t first = 0;
    for (size_t i = 0; i < depths.size(); ++i) {
      for (const int layer : run.hidden_state_layers) {
        if (layer >= first && layer < first + depths[i]) {
          layers.insert(static_cast<int>(layer - first));
        }
        if (layer == static_cast<int>(run.layer_numbers.size() + i)) {
          layers.insert(static_cast<int>(depths[i]));
        }
      }
      first += depths[i];
    }
    options.hidden_state_layers.assign(layers.begin(), layers.end());
  }
  return options;
}

/// With the instruction set that the log names, where this machine has it and the user chose none.
template <typename Load>
auto load_as_logged(const Run& run, const vitrine::EngineOptions& options, Load load) {
  const char* chosen = std::getenv(kIsaVariable);
  const bool forces = (chosen == nullptr || *chosen == '\0') && run.header.kernels == "fused" &&
                      options.kernels != vitrine::KernelPath::kReference &&
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
  FileHashes found = file_hashes(checkpoint, cache);
  for (auto& hash : lora_hashes(logged_lora(log), cache)) found.push_back(std::move(hash));
  return first_other_file(log.hashes, found);
}

std::string other_federation(const vitrine::LogHeader& log, const vitrine::FederationSpec& spec,
                             HashCache cache) {
  vitrine::LogHeader here;
  add_members(spec, here);
  FileHashes found = file_hashes(open_model(spec.specialists[0].model), cache);
  const auto is_of_all_files = [&](const auto& entry) {
    return entry.first.starts_with("specialist ") &&
           std::ranges::none_of(spec.specialists, [&](const vitrine::SpecialistSpec& one) {
             return entry.first == "specialist " + one.name;
           });
  };
  const bool is_old = std::ranges::none_of(log.hashes, is_of_all_files);
  for (const auto& entry : here.hashes) {
    // Logs of earlier versions name the first weights of each specialist alone.
    if (!is_old || !is_of_all_files(entry)) found.push_back(entry);
  }
  return first_other_file(log.hashes, found);
}

std::string model_problem(const vitrine::LogHeader& log, const std::string& path) {
  if (log.hashes.empty()) return "the log names no hashes: which model made it cannot be checked";
  if (logged_federation(log).empty()) {
    return other_model(log, open_model(path), HashCache::kRefresh);
  }
  const vitrine::FederationSpec spec = load_federation_spec(path, HashCache::kRefresh);
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
  const vitrine::ModelFacts config = vitrine::read_model_facts(open_model(path));
  const vitrine::EngineOptions options =
      replay_options(run, arguments, {config.num_layers}, is_other_model);
  return load_as_logged(run, options, [&] { return vitrine::Engine::load(path, options); });
}

std::unique_ptr<vitrine::Federation> load_replayed(const Run& run,
                                                   const vitrine::FederationSpec& spec,
                                                   const AuditArguments& arguments) {
  const vitrine::EngineOptions options = replay_options(run, arguments, depths_of(spec), false);
  return load_as_logged(run, options, [&] { return vitrine::Federation::load(spec, options); });
}

}  // namespace cli

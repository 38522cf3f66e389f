// SPDX-License-Identifier: Apache-2.0
#include "eval_target.h"

#include <fmt/format.h>

#include <filesystem>

#include "build_facts.h"
#include "chat_prompt.h"
#include "log_options.h"
#include "lora_options.h"
#include "model_hashes.h"
#include "option_section.h"
#include "remote_target.h"
#include "sampling_options.h"

namespace cli {

namespace {

constexpr int64_t kMostContext = 32768;

bool is_federation(const std::string& path) { return path.ends_with(".json"); }

vitrine::ModelOptions model_options(const EvalTargetOptions& options) {
  vitrine::ModelOptions model;
  model.engine = options.device.engine_options();
  model.engine.cancelled = &interrupt_flag();
  if (is_federation(options.model)) {
    model.engine.max_context = options.context;
  } else {
    const vitrine::ModelFacts facts = read_model_facts(open_model(options.model));
    model.engine.max_context =
        static_cast<int>(context_limit(options.context, facts, options.model, kMostContext));
  }
  if (!options.chat_template.empty()) {
    model.chat_template = chat_template_source(options.chat_template);
  }
  model.engine.audit_mode =
      options.audit_folder.empty() ? vitrine::AuditMode::kNone : vitrine::AuditMode::kDeferred;
  // They name the expert where two models part; the CPU's fused kernels have them.
  model.engine.expert_norms = !options.audit_folder.empty() && options.device.device == "cpu" &&
                              options.device.kernels != "reference" &&
                              !is_federation(options.model);
  prepare_for_evaluation(model, options.parallel);
  return model;
}

nlohmann::ordered_json facts_of(const EvalTargetOptions& options, const vitrine::Model& model) {
  const vitrine::ModelSummary& summary = model.summary();
  nlohmann::ordered_json hashes = nlohmann::ordered_json::object();
  uint64_t bytes = 0;
  if (!is_federation(options.model)) {
    const vitrine::Checkpoint checkpoint = open_model(options.model);
    for (const auto& [file, hash] : file_hashes(checkpoint)) hashes[file] = hash;
    for (const vitrine::TensorInfo& tensor : checkpoint.tensors()) bytes += tensor.stored_bytes;
  } else {
    hashes[std::filesystem::path(options.model).filename().string()] = file_hash(options.model);
  }
  return {{"device", summary.device},
          {"kernels", summary.kernels},
          {"isa", summary.isa},
          {"kv_type", summary.kv_codec},
          {"activation_type", options.device.activation_type},
          {"rope_frequencies", options.device.rope_frequencies},
          {"lora", options.device.lora},
          {"chat_template", options.chat_template},
          {"build", build_commit()},
          {"bytes", bytes},
          {"sha256", hashes}};
}

vitrine::ModelTargetOptions target_options(const EvalTargetOptions& options,
                                           const vitrine::Model& model) {
  vitrine::ModelTargetOptions target;
  target.parallel = options.parallel;
  target.drafter = options.drafter == "auto" ? "suffix" : options.drafter;
  target.facts_json = facts_of(options, model).dump();
  target.cancelled = &interrupt_flag();
  if (options.audit_folder.empty()) return target;
  std::filesystem::create_directories(options.audit_folder);
  target.audit_folder = options.audit_folder;
  target.audit_header = log_header(options.model, SamplingOptions{}, options.device,
                                   model.summary(), open_model(options.model));
  if (!options.seal.empty()) {
    target.audit_log.seal = vitrine::SealKey::load_or_create(options.seal);
  }
  for (const std::string& argument : options.encrypt_for) {
    target.audit_log.recipients.push_back(parse_recipient(argument));
  }
  return target;
}

}  // namespace

void EvalTargetOptions::add_to(CLI::App& command) {
  command.add_option("--parallel", parallel, "answers that are made at once")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command
      .add_option("--context", context,
                  "positions of a prompt and its answer (default: the model's own limit, at most "
                  "32768)")
      ->check(CLI::Range(1, 1 << 24));
  command.add_option("--speculate", drafter, "who guesses ahead: ngram, suffix or auto")
      ->check(CLI::IsMember({"ngram", "suffix", "auto"}));
  command.add_option("--chat-template", chat_template,
                     "file with a chat template, or the name of a built-in one");
  {
    const OptionSection section(command, "Server elsewhere");
    command.add_option("--api-key", api_key, "key for a server at http://HOST:PORT/v1");
    command.add_option("--api-model", api_model,
                       "what that server calls the model (default: the first of its list)");
    command
        .add_option("--api-form", api_form,
                    "how it is asked: chat, text or auto (chat, where it takes conversations)")
        ->check(CLI::IsMember({"auto", "chat", "text"}))
        ->capture_default_str();
    command
        .add_option("--api-timeout", api_timeout,
                    "seconds without a piece of an answer that end the run")
        ->check(CLI::Range(1, 86400))
        ->capture_default_str();
    command
        .add_option("--api-retries", api_retries,
                    "how often it is asked again where it is busy or gone, each time after twice "
                    "the wait")
        ->check(CLI::Range(0, 100))
        ->capture_default_str();
  }
  add_lora(command, device.lora);
  {
    const OptionSection section(command, "Audit log");
    command
        .add_option("--audit", audit_folder,
                    "folder for a sealed log of each answer, which `compare` reads")
        ->check(not_empty());
    command
        .add_option("--seal", seal, "Ed25519 secret key that signs them; made where there is none")
        ->check(not_empty());
    command.add_option("--encrypt-for", encrypt_for,
                       "encrypt them for this public key (KEYFILE.pub), or only some columns: "
                       "KEYFILE.pub:routing; may be given again");
  }
  device.add_to(command);
}

std::unique_ptr<vitrine::EvaluationTarget> open_eval_target(const EvalTargetOptions& options) {
  if (options.is_remote()) {
    if (!options.audit_folder.empty()) {
      refuse("--audit takes a model that is loaded here; expected no address of a server");
    }
    return open_remote_target(options);
  }
  vitrine::Model model = vitrine::Model::open(options.model, model_options(options));
  const vitrine::ModelTargetOptions target = target_options(options, model);
  return vitrine::make_model_target(std::move(model), target);
}

}  // namespace cli

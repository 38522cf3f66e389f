// SPDX-License-Identifier: Apache-2.0
// vitrine inspect: what a model is, what it takes, and which kernel runs each op.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <span>

#include "build_facts.h"
#include "federate.h"
#include "inspect_manifest.h"
#include "lora_options.h"
#include "memory_need.h"
#include "vitrine/engine.h"

namespace cli {

namespace {

struct InspectArguments {
  std::string model;
  std::optional<int> context;  // 0: the model's own limit
  bool plan = false, tensors = false, json = false;
  bool manifest = false;
  std::string source;
  DeviceOptions device;
};

/// A model's own limit may be a million positions, whose keys and values no memory holds.
constexpr int kMaxContext = 32768;

bool runs_cpu_kernels(const vitrine::ModelSummary& model) {
  return model.device == "cpu" && model.kernels == "fused";
}

struct Totals {
  int64_t count = 0;
  uint64_t bytes = 0;
};

/// Name of the module that a tensor belongs to: what stands before the last dot.
std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

/// Counts modules of one form, and their bytes in the file and in memory.
struct ModuleForm {
  int64_t count = 0;
  uint64_t file_bytes = 0, memory_bytes = 0;
  bool is_kept = true;  ///< it runs as the file has it
};

/// "int4, groups of 32", "awq: int4, groups of 128, with zero points" or "Q4_0" -> what there is.
std::map<std::string, ModuleForm> quantized_modules(const vitrine::Checkpoint& checkpoint) {
  std::map<std::string, ModuleForm> modules;
  for (const vitrine::TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.block_format != nullptr) {
      ModuleForm& form = modules[std::string(tensor.block_format->name)];
      ++form.count;
    }
    const std::string name = module_of(tensor.name);
    if (checkpoint.find_quantized(name) != &tensor) continue;
    if (!checkpoint.quantized_module(name)) continue;
    const auto tensors = checkpoint.find_quantized_tensors(name);
    const bool is_plain = tensors->is_in_place;
    ModuleForm& form =
        modules[(is_plain ? "" : std::string(tensors->format) + ": ") + tensors->runs_as()];
    ++form.count;
    form.file_bytes += tensors->file_bytes();
    form.memory_bytes += tensors->memory_bytes();
    form.is_kept = is_plain;
  }
  return modules;
}

/// "12 modules in awq: int4, groups of 128, with zero points; 1.2 MB in the file, 1.3 MB in
/// memory"; of what runs as the file has it "12 modules in int4, groups of 128; 1.3 MB in memory".
std::string form_text(const std::string& form, const ModuleForm& modules) {
  const std::string in_file =
      modules.is_kept ? "" : format_bytes(modules.file_bytes) + " in the file, ";
  const std::string in_memory = format_bytes(modules.memory_bytes) + " in memory";
  return fmt::format("{:>5} modules in {}{}", modules.count, form,
                     modules.memory_bytes == 0 ? "" : "; " + in_file + in_memory);
}

/// "263 of the tensors, 1.2 MB".
std::string count_text(const vitrine::TensorCount& count) {
  return fmt::format("{:>5} of the tensors, {}", count.tensors, format_bytes(count.bytes));
}

/// Returns what a load says of the tensors that nothing asks for, and their names.
std::string unused_text(const vitrine::TensorUse& use) {
  constexpr size_t kMostNamed = 6;
  const std::span<const std::string> all = use.unused_names;
  const auto first = all.first(std::min(all.size(), kMostNamed));
  return fmt::format(
      "{}, refused without --lenient-weights: {}{}", count_text(use.unused), fmt::join(first, ", "),
      all.size() > first.size() ? fmt::format(" and {} more", all.size() - first.size())
                                : std::string());
}

/// "12 layers within 128, room for 1728 positions: 1.8 MB".
std::string memory_text(const vitrine::KvMemory& kind) {
  const std::string bytes = format_bytes(kind.bytes);
  if (kind.layers == 0) return bytes + " of keys and values are theirs";
  const std::string layers = fmt::format("{} layer{}", kind.layers, kind.layers == 1 ? "" : "s");
  if (kind.positions == 0) return fmt::format("{}, {} states: {}", layers, kind.states, bytes);
  return fmt::format("{}{}, room for {} positions: {}", layers,
                     kind.window > 0 ? fmt::format(" within {}", kind.window) : "", kind.positions,
                     bytes);
}

/// "12.1 MB: 5.2 MB weights, 4.0 MB keys and values (i16) for 2048 positions, ...".
std::string need_text(const vitrine::ModelPlan& made) {
  const vitrine::ModelSummary& model = made.summary;
  const uint64_t drafters = made.options.draft_kv_bytes.value_or(0);
  return fmt::format(
      "{}: {} weights{}, {} keys and values ({}) for {} positions, {}{} intermediates, "
      "{} tables of positions",
      format_bytes(model.weight_bytes + model.kv_bytes + drafters + model.arena_bytes +
                   model.table_bytes),
      format_bytes(model.weight_bytes),
      model.mapped_bytes > 0
          ? fmt::format(" (and {} in the mapped file)", format_bytes(model.mapped_bytes))
          : "",
      format_bytes(model.kv_bytes), model.kv_codec, made.options.max_context,
      drafters > 0 ? format_bytes(drafters) + " drafters', " : "", format_bytes(model.arena_bytes),
      format_bytes(model.table_bytes));
}

std::string plain_text(const InspectArguments& arguments, const vitrine::Checkpoint& checkpoint,
                       const vitrine::ModelPlan& made, const std::optional<MemoryNeed>& need) {
  const vitrine::ModelSummary& model = made.summary;
  std::string text;
  const auto line = [&text](const char* name, const std::string& value) {
    text += fmt::format("{:<18}{}\n", name, value);
  };
  line("model", model.path);
  line("architecture", model.architecture);
  line("layers", fmt::format("{}", model.num_layers));
  line("hidden size", fmt::format("{}", model.hidden_size));
  line("attention",
       model.latent_size > 0
           ? fmt::format("{} query heads of {} over one latent key of {}",
                         model.num_attention_heads, model.head_dim, model.latent_size)
           : fmt::format("{} query heads over {} key-value heads of {}", model.num_attention_heads,
                         model.num_key_value_heads, model.head_dim));
  line("experts", model.num_experts == 0
                      ? std::string("none: a dense model")
                      : fmt::format("{} of width {}, {} used per token{}", model.num_experts,
                                    model.moe_intermediate_size, model.num_experts_per_token,
                                    model.shared_expert_intermediate_size > 0
                                        ? fmt::format(", and a shared one of width {}",
                                                      model.shared_expert_intermediate_size)
                                        : ""));
  line("vocabulary", fmt::format("{}", model.vocab_size));
  line("context", made.options.max_context > model.max_position_embeddings
                      ? fmt::format("{}: -c {} is beyond it, and would be refused",
                                    model.max_position_embeddings, made.options.max_context)
                      : fmt::format("{}", model.max_position_embeddings));
  line("parameters",
       fmt::format("{:.1f} million", static_cast<double>(model.num_parameters) / 1e6));
  std::map<std::string, Totals> by_dtype;
  for (const vitrine::TensorInfo& tensor : checkpoint.tensors()) {
    Totals& totals = by_dtype[std::string(tensor.storage_name())];
    ++totals.count;
    totals.bytes += tensor.stored_bytes;
  }
  for (const auto& [dtype, totals] : by_dtype) {
    line("tensors", fmt::format("{:>5} {:<8}{}", totals.count, dtype, format_bytes(totals.bytes)));
  }
  line("used", count_text(made.tensors.used));
  for (const vitrine::UnneededTensors& kind : made.tensors.not_needed) {
    line(kind.purpose.c_str(), count_text(kind.count) + ", not needed");
  }
  if (made.tensors.unused.tensors > 0) line("unused", unused_text(made.tensors));
  const auto modules = quantized_modules(checkpoint);
  if (modules.empty()) line("quantization", "none");
  for (const auto& [form, found] : modules) line("quantization", form_text(form, found));
  for (const std::string& note : checkpoint.quantization_notes()) line("note", note);
  line("device", fmt::format("{}, {} kernels ({}), {} thread{}", model.device, model.kernels,
                             runs_cpu_kernels(model) ? with_unused_features(model.isa) : model.isa,
                             model.threads, model.threads == 1 ? "" : "s"));
  line("memory", need_text(made));
  for (const vitrine::KvMemory& kind : vitrine::kv_memory(checkpoint, made.options)) {
    line(kind.layers == 0     ? "drafters"
         : kind.positions > 0 ? "keys and values"
                              : "states",
         memory_text(kind));
  }
  if (need) line("fits", fit_text(*need));
  line("read per token", format_bytes(model.bytes_per_token));
  line("invariant", model.invariant ? "yes: one token, one result" : "no (reference path)");
  if (arguments.tensors) {
    text += "\n";
    for (const vitrine::TensorInfo& tensor : checkpoint.tensors()) {
      text += fmt::format("{:<7}{:>12}  {} [{}]\n", tensor.storage_name(), tensor.stored_bytes,
                          tensor.name, fmt::join(tensor.shape, ", "));
    }
  }
  if (arguments.plan) {
    size_t width = 12;
    for (const vitrine::PlanEntry& entry : made.plan) width = std::max(width, entry.op.size() + 1);
    text += fmt::format("\n{:<7}{:<{}}{:>10}  {}\n", "layer", "op", width, "weights", "kernel");
    for (const vitrine::PlanEntry& entry : made.plan) {
      text += fmt::format("{:<7}{:<{}}{:>10}  {}\n",
                          entry.layer < 0 ? std::string("-") : fmt::format("{}", entry.layer),
                          entry.op, width, format_bytes(entry.weight_bytes), entry.kernel);
    }
  }
  return text;
}

nlohmann::ordered_json json_object(const InspectArguments& arguments,
                                   const vitrine::Checkpoint& checkpoint,
                                   const vitrine::ModelPlan& made,
                                   const std::optional<MemoryNeed>& need) {
  const vitrine::ModelSummary& model = made.summary;
  nlohmann::ordered_json json;
  json["model"] = model.path;
  json["architecture"] = model.architecture;
  json["num_layers"] = model.num_layers;
  json["hidden_size"] = model.hidden_size;
  json["num_attention_heads"] = model.num_attention_heads;
  json["num_key_value_heads"] = model.num_key_value_heads;
  json["head_dim"] = model.head_dim;
  json["num_experts"] = model.num_experts;
  json["num_experts_per_token"] = model.num_experts_per_token;
  json["moe_intermediate_size"] = model.moe_intermediate_size;
  json["shared_expert_intermediate_size"] = model.shared_expert_intermediate_size;
  json["vocab_size"] = model.vocab_size;
  json["max_position_embeddings"] = model.max_position_embeddings;
  json["eos_token_ids"] = model.eos_token_ids;
  json["num_parameters"] = model.num_parameters;
  json["quantization"] = nlohmann::ordered_json::array();
  for (const auto& [form, found] : quantized_modules(checkpoint)) {
    json["quantization"].push_back({{"scheme", form}, {"modules", found.count}});
    if (found.is_kept) continue;
    json["quantization"].back()["file_bytes"] = found.file_bytes;
    json["quantization"].back()["memory_bytes"] = found.memory_bytes;
  }
  json["quantization_notes"] = checkpoint.quantization_notes();
  const auto counts = [](const vitrine::TensorCount& count) {
    return nlohmann::ordered_json{{"tensors", count.tensors}, {"bytes", count.bytes}};
  };
  json["used"] = counts(made.tensors.used);
  json["not_used"] = nlohmann::ordered_json::array();
  for (const vitrine::UnneededTensors& kind : made.tensors.not_needed) {
    nlohmann::ordered_json entry = {{"purpose", kind.purpose}};
    entry.update(counts(kind.count));
    json["not_used"].push_back(std::move(entry));
  }
  json["unused"] = counts(made.tensors.unused);
  json["unused"]["names"] = made.tensors.unused_names;
  json["device"] = model.device;
  json["kernels"] = model.kernels;
  json["isa"] = model.isa;
  json["unused_features"] = runs_cpu_kernels(model) ? vitrine::cpu_unused_features() : "";
  json["threads"] = model.threads;
  json["invariant"] = model.invariant;
  json["memory"] = {{"weight_bytes", model.weight_bytes},
                    {"mapped_bytes", model.mapped_bytes},
                    {"kv_bytes", model.kv_bytes},
                    {"kv_type", model.kv_codec},
                    {"draft_kv_bytes", made.options.draft_kv_bytes.value_or(0)},
                    {"arena_bytes", model.arena_bytes},
                    {"table_bytes", model.table_bytes},
                    {"kv", nlohmann::ordered_json::array()}};
  for (const vitrine::KvMemory& kind : vitrine::kv_memory(checkpoint, made.options)) {
    json["memory"]["kv"].push_back({{"layers", kind.layers},
                                    {"window", kind.window},
                                    {"positions", kind.positions},
                                    {"states", kind.states},
                                    {"bytes", kind.bytes}});
  }
  if (need) json["memory"]["machine"] = fit_json(*need);
  json["bytes_per_token"] = model.bytes_per_token;
  json["tensors"] = nlohmann::ordered_json::array();
  for (const vitrine::TensorInfo& tensor : checkpoint.tensors()) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"dtype", std::string(tensor.storage_name())},
                               {"shape", tensor.shape},
                               {"bytes", tensor.stored_bytes}});
  }
  if (arguments.plan) {
    json["plan"] = nlohmann::ordered_json::array();
    for (const vitrine::PlanEntry& entry : made.plan) {
      nlohmann::ordered_json op;
      op["layer"] =
          entry.layer < 0 ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(entry.layer);
      op["op"] = entry.op;
      op["kernel"] = entry.kernel;
      op["weight_bytes"] = entry.weight_bytes;
      json["plan"].push_back(std::move(op));
    }
  }
  return json;
}

int run_inspect(const InspectArguments& arguments) {
  if (arguments.manifest) {
    return inspect_manifest(arguments.model, arguments.source, arguments.json);
  }
  if (std::filesystem::path(arguments.model).extension() == ".json") {
    if (arguments.plan || arguments.tensors || arguments.context) {
      refuse("--plan, --tensors and -c are of one model; expected a model, not a federation file");
    }
    return inspect_federation(arguments.model, arguments.device, arguments.json);
  }
  const vitrine::Checkpoint checkpoint = open_model(arguments.model);
  const vitrine::ModelFacts config = vitrine::read_model_facts(checkpoint);
  vitrine::EngineOptions options = arguments.device.engine_options();
  options.lenient_weights = true;  // what has no use is counted
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  options.max_context = arguments.context.value_or(0);
  if (options.max_context == 0) {
    options.max_context = static_cast<int>(
        context_limit(0, config, arguments.model, arguments.context ? kNoLimit : kMaxContext));
  }
  const vitrine::ModelPlan made = vitrine::Engine::describe(arguments.model, options);
  const std::optional<MemoryNeed> need = find_need(checkpoint, options, made);
  if (arguments.json) {
    write_json(json_object(arguments, checkpoint, made, need));
  } else {
    write_out(plain_text(arguments, checkpoint, made, need));
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* inspect = app.add_subcommand("inspect", "Tells what a model is and what it takes");
  add_model(*inspect, arguments->model,
            "folder of the model, a .gguf file, or a federation file (.json)");
  inspect
      ->add_option("-c,--context", arguments->context,
                   fmt::format("positions whose memory is told, any number (default: the model's "
                               "own limit, at most {}); 0: that limit itself",
                               kMaxContext))
      ->check(CLI::Range(0, std::numeric_limits<int>::max()));
  inspect->add_flag("--plan", arguments->plan, "the kernel of every op");
  inspect->add_flag("--tensors", arguments->tensors, "every tensor of the checkpoint");
  inspect->add_flag("--json", arguments->json, "one JSON object, tensors included");
  CLI::Option* manifest =
      inspect->add_flag("--manifest", arguments->manifest,
                        "how `quantize` made this folder, by its manifest, held against its files");
  inspect
      ->add_option("--source", arguments->source,
                   "folder that it was made of, whose files are held against the manifest, too")
      ->check(not_empty())
      ->needs(manifest);
  add_lora(*inspect, arguments->device.lora);
  arguments->device.add_to(*inspect);
  inspect->callback(
      [arguments, &command] { command = [arguments] { return run_inspect(*arguments); }; });
}

}  // namespace cli

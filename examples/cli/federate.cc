// SPDX-License-Identifier: Apache-2.0
// vitrine federate: specialists that answer together; vitrine inspect of a federation file.
#include "federate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "audit_run.h"
#include "text_file.h"

namespace cli {

namespace {

constexpr size_t kFederateMaxTextBytes = size_t{64} << 20;
constexpr const char* kAllFiles = ": all files";
constexpr int kScoredTogether = 64;  // tokens of a window in one step

std::string weight_text(const vitrine::FederationSpec& spec, size_t i) {
  if (spec.combiner.kind == vitrine::CombinerSpec::Kind::kGate) return "by the gate";
  return fmt::format("{:.4f}", spec.combiner.weights[i]);
}

std::string combiner_text(const vitrine::FederationSpec& spec) {
  using Kind = vitrine::CombinerSpec::Kind;
  const std::string name(vitrine::combiner_kind_name(spec.combiner.kind));
  if (spec.combiner.kind == Kind::kGate) {
    return fmt::format("{}: softmax over {} numbers of the base's hidden state", name,
                       spec.combiner.hidden_size);
  }
  return name + (spec.combiner.kind == Kind::kProduct
                     ? ": weighted product of experts, normalised over the vocabulary"
                     : ": fixed weights");
}

void require_numbers(const vitrine::Federation& federation, const ScoredTexts& texts,
                     const ScoredToken& token) {
  const auto& specialists = federation.spec().specialists;
  for (size_t i = 0; i < token.shares.size(); ++i) {
    if (std::isfinite(token.shares[i].logprob)) continue;
    refuse_no_number(specialists[i].name, texts.names[token.text], token.shares[i].logprob);
  }
}

uint64_t adapter_bytes(const vitrine::SpecialistSpec& specialist) {
  std::error_code error;
  const auto bytes =
      std::filesystem::file_size(specialist.adapter + "/adapter_model.safetensors", error);
  return error ? 0 : bytes;
}

nlohmann::ordered_json inspect_json(const vitrine::FederationSpec& spec,
                                    const vitrine::Federation& federation) {
  const vitrine::ModelSummary& model = federation.summary();
  nlohmann::ordered_json json;
  json["federation"] = spec.path;
  json["combiner"] = vitrine::combiner_kind_name(spec.combiner.kind);
  json["base"] =
      spec.base.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(spec.base);
  for (size_t i = 0; i < spec.specialists.size(); ++i) {
    const vitrine::SpecialistSpec& specialist = spec.specialists[i];
    nlohmann::ordered_json entry = {{"name", specialist.name}, {"model", specialist.model}};
    if (!specialist.adapter.empty()) {
      entry["adapter"] = specialist.adapter;
      entry["adapter_bytes"] = adapter_bytes(specialist);
    }
    if (!spec.combiner.weights.empty()) entry["weight"] = spec.combiner.weights[i];
    json["specialists"].push_back(std::move(entry));
  }
  json["engines"] = federation.engines().size();
  json["vocab_size"] = model.vocab_size;
  json["max_context"] = federation.options().max_context;
  json["memory"] = {{"weight_bytes", model.weight_bytes},
                    {"kv_bytes", model.kv_bytes},
                    {"kv_type", model.kv_codec},
                    {"arena_bytes", model.arena_bytes}};
  json["bytes_per_token"] = model.bytes_per_token;
  json["invariant"] = model.invariant;
  if (!spec.fit_json.empty()) json["fit"] = nlohmann::ordered_json::parse(spec.fit_json);
  return json;
}

}  // namespace

vitrine::FederationSpec load_federation_spec(const std::string& path, HashCache cache) {
  std::error_code error;
  const bool is_model = path.ends_with(".gguf") || path.ends_with(".safetensors") ||
                        std::filesystem::exists(path + "/config.json", error);
  if (is_model && std::filesystem::exists(path, error)) {
    refuse(fmt::format(
        "{}: is a model, and federate takes a federation file (JSON), which names two or more; one "
        "alone is for vitrine generate, and docs/federation.md shows such a file",
        path));
  }
  vitrine::FederationSpec spec = vitrine::FederationSpec::load(path);
  // A command asks several times, and reads each file once.
  const auto known = std::make_shared<std::map<std::string, std::string>>();
  spec.hash_file = [cache, known](const std::string& file) {
    std::string& hash = (*known)[file];
    if (hash.empty()) hash = file_hash(file, cache);
    return hash;
  };
  return spec;
}

std::vector<NamedPath> member_paths(const vitrine::FederationSpec& spec) {
  std::vector<NamedPath> paths{{"the base", spec.base}};
  for (const vitrine::SpecialistSpec& specialist : spec.specialists) {
    const std::string name = "specialist " + plain(specialist.name);
    paths.emplace_back(name, specialist.model);
    paths.emplace_back(name, specialist.adapter);
  }
  return paths;
}

void add_members(const vitrine::FederationSpec& spec, vitrine::LogHeader& header) {
  header.engine.emplace_back("federation", spec.path);
  const auto files = vitrine::member_files(spec);
  // One entry for all files, since a head has room for a thousand. It names the base's by itself.
  const std::vector<std::string> hashes = vitrine::member_hashes(spec, false);
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = "specialist " + spec.specialists[i].name;
    header.hashes.emplace_back(name, spec.hash_file(files[i].front().path));
    header.hashes.emplace_back(name + kAllFiles, hashes[i]);
  }
  header.hashes.emplace_back("federation", vitrine::sha256_of_file(spec.path));
}

int inspect_federation(const std::string& path, const DeviceOptions& device, bool json) {
  const vitrine::FederationSpec spec = load_federation_spec(path);
  const auto federation = vitrine::Federation::load(spec, device.engine_options());
  if (json) {
    write_json(inspect_json(spec, *federation));
    return 0;
  }
  const vitrine::ModelSummary& model = federation->summary();
  std::string text;
  const auto line = [&text](const char* name, const std::string& value) {
    text += fmt::format("{:<18}{}\n", name, value);
  };
  line("federation", plain(spec.path));
  line("combiner", combiner_text(spec));
  if (!spec.base.empty()) line("base", plain(spec.base));
  for (size_t i = 0; i < spec.specialists.size(); ++i) {
    const vitrine::SpecialistSpec& specialist = spec.specialists[i];
    std::string of =
        specialist.adapter.empty()
            ? (spec.base.empty() ? plain(specialist.model) : std::string("the base itself"))
            : fmt::format("{} ({})", plain(specialist.adapter),
                          format_bytes(adapter_bytes(specialist)));
    line("specialist",
         fmt::format("{:<14} weight {:<12} {}", plain(specialist.name), weight_text(spec, i), of));
  }
  line("engines", fmt::format("{}{}", federation->engines().size(),
                              spec.base.empty() ? "" : ": the base is read once for all"));
  line("vocabulary", fmt::format("{}", model.vocab_size));
  line("device", fmt::format("{}, {} kernels ({}), {} thread{}", model.device, model.kernels,
                             model.isa, model.threads, model.threads == 1 ? "" : "s"));
  line("memory",
       fmt::format("{} weights, {} keys and values ({}) for {} positions, {} intermediates",
                   format_bytes(model.weight_bytes), format_bytes(model.kv_bytes), model.kv_codec,
                   federation->options().max_context, format_bytes(model.arena_bytes)));
  line("read per token", format_bytes(model.bytes_per_token));
  line("invariant", model.invariant ? "yes: one token, one result" : "no (reference path)");
  if (!spec.fit_json.empty()) line("fitted", "yes; --json shows on what, and what it gained");
  write_out(text);
  return 0;
}

std::vector<int64_t> depths_of(const vitrine::FederationSpec& spec) {
  std::vector<int64_t> depths;
  for (const vitrine::SpecialistSpec& specialist : spec.specialists) {
    depths.push_back(vitrine::read_model_facts(open_model(specialist.model)).num_layers);
  }
  return depths;
}

int64_t num_layers_of(const vitrine::FederationSpec& spec) {
  return std::ranges::max(depths_of(spec));
}

std::vector<std::string> names_of(const vitrine::FederationSpec& spec) {
  std::vector<std::string> names;
  for (const vitrine::SpecialistSpec& specialist : spec.specialists) {
    names.push_back(specialist.name);
  }
  return names;
}

std::string short_name(const std::string& name, size_t most_bytes) {
  if (name.size() <= most_bytes) return plain(name);
  size_t end = most_bytes;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
  return plain(name.substr(0, end));
}

bool is_held_out(size_t window, double share) {
  const auto before = [share](size_t count) {
    return std::floor(static_cast<double>(count) * share + 0.5);
  };
  return before(window + 1) > before(window);
}

void refuse_no_number(const std::string& specialist, const std::string& text, double found) {
  throw vitrine::Error(
      vitrine::ErrorKind::kBadFile,
      fmt::format("specialist '{}' gives a token of {} the log-probability {}; expected a number "
                  "(are its weights damaged?)",
                  plain(specialist), plain(text), found));
}

void TextArguments::add_to(CLI::App& command) {
  command.add_option("FEDERATION", federation, "the federation file")->required();
  command.add_option("TEXT", texts, "UTF-8 files; bytes that are none count as U+FFFD")->required();
  command.add_option("--window", window, "tokens that are read in one go; each window begins anew")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command.add_flag("--json", json, "one JSON object instead of text");
  device.add_to(command);
}

size_t ScoredTexts::num_tokens() const {
  size_t count = 0;
  for (const std::vector<int32_t>& text : ids) count += text.size();
  return count;
}

ScoredTexts read_texts(const std::vector<std::string>& paths, const vitrine::FederationSpec& spec,
                       int window) {
  const std::string& first = spec.specialists[0].model;
  const vitrine::Checkpoint checkpoint = open_model(first);
  const vitrine::ModelFacts config = vitrine::read_model_facts(checkpoint);
  const vitrine::Tokenizer tokenizer = open_tokenizer(checkpoint, config);
  for (const vitrine::SpecialistSpec& specialist : spec.specialists) {
    const bool is_first = specialist.model == first;  // adapters share it
    const int64_t limit =
        (is_first ? config : vitrine::read_model_facts(open_model(specialist.model)))
            .max_position_embeddings;
    if (window <= limit) continue;
    refuse(fmt::format("--window {}: {} holds {} positions; expected at most that", window,
                       specialist.model, limit));
  }
  ScoredTexts texts;
  for (const std::string& path : paths) {
    const std::string text = read_text_file(path, kFederateMaxTextBytes);
    texts.ids.push_back(tokenizer.encode(text, false));
    texts.names.push_back(std::filesystem::path(path).filename().string());
    texts.hashes.push_back(vitrine::sha256_of_text(text));
    if (texts.ids.back().size() < 2) {
      refuse(fmt::format("{}: has {} tokens; expected at least 2", path, texts.ids.back().size()));
    }
  }
  const std::vector<std::string> file_names = texts.names;
  for (size_t i = 0; i < paths.size(); ++i) {
    if (std::ranges::count(paths, paths[i]) > 1) {
      refuse(fmt::format("{}: is given twice; expected each text once", paths[i]));
    }
    if (std::ranges::count(file_names, file_names[i]) > 1) texts.names[i] = paths[i];
  }
  return texts;
}

vitrine::EngineOptions text_options(const DeviceOptions& device, int window) {
  vitrine::EngineOptions options =
      vitrine::scoring_options(window, device.engine_options(), kScoredTogether);
  options.keep_hidden_state = true;  // gates' input
  return options;
}

void score_texts(vitrine::Federation& federation, const ScoredTexts& texts, int window,
                 const std::function<void(const ScoredToken&)>& on_token, size_t every) {
  vitrine::WindowOptions options;
  options.window = window;
  options.every = every;
  options.before_step = [] { stop_if_interrupted(kFederateCancelled); };
  for (size_t text = 0; text < texts.ids.size(); ++text) {
    options.first_window += vitrine::predict_windows(federation, texts.ids[text], options,
                                                     [&](const vitrine::PredictedToken& predicted) {
                                                       const ScoredToken token{predicted, text};
                                                       require_numbers(federation, texts, token);
                                                       on_token(token);
                                                     });
  }
}

void add_federate(CLI::App& app, Command& command) {
  CLI::App* federate =
      app.add_subcommand("federate", "Generates text with several specialists together");
  add_federated_generation(*federate, command);
  federate->require_subcommand(0, 1);
  add_federate_fit(*federate, command);
  add_federate_score(*federate, command);
}

}  // namespace cli

// SPDX-License-Identifier: Apache-2.0
// vitrine audit replay: reruns a log and compares to the last bit.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "audit.h"
#include "audit_rerun.h"
#include "federate.h"
#include "replay_drift.h"
#include "replay_models.h"

namespace cli {

namespace {

using vitrine::LayerRecord;
using vitrine::TokenRecord;

void require_replayable(const Run& run, bool force_routes) {
  if (run.report && run.report->seal == vitrine::VtrReport::Seal::kBroken) {
    refuse(fmt::format("{}: the log is broken ({}); expected one that audit verify believes",
                       run.path, plain(run.report->problem)));
  }
  require_tokens(run, "replay");
  for (const TokenRecord& record : run.records) {
    if (record.position >= 0 && record.position < kMaxPositions) continue;
    refuse(fmt::format("{}: a record stands at position {}; expected 0 or more", run.path,
                       record.position));
  }
  if (run.records.empty()) refuse(fmt::format("{}: no record; expected one or more", run.path));
  for (size_t i = 0; i < run.records.size(); ++i) {
    const auto has_route_left_out = [](const LayerRecord& layer) {
      return std::ranges::any_of(layer.routes, [](const auto& route) { return route.expert < 0; });
    };
    const char* missing = nullptr;
    if (force_routes && std::ranges::any_of(run.records[i].layers, has_route_left_out)) {
      missing = "routes";
    }
    if (!run.digests.empty() && run.digests[i] == 0) missing = "digest";
    if (run.records[i].token < 0) missing = "token";
    if (missing == nullptr) continue;
    refuse(
        fmt::format("{}: the {} of position {} was left out or is encrypted (--decrypt); "
                    "replay expects tokens and digests",
                    run.path, missing, run.records[i].position));
  }
}

struct ReplayComparison {
  size_t equal = 0, different = 0, not_rerun = 0, not_checked = 0, predictions = 0;
  size_t first = 0;  // index of the first record that differs
  std::optional<Difference> difference;
};

/// Where only the digests differ: what does, as far as the log tells.
const char* undetermined_part(const Run& run, size_t index) {
  if (run.level == "full") return "bits of values that are equal as numbers, digest";
  const bool has_marks = !run.layer_marks[index].empty() && run.records[index].has_prediction;
  return has_marks ? "log-probabilities or logits (unrounded; no layer's mark differs), digest"
                   : "unrounded values, digest";
}

struct RecordComparison {
  std::optional<Difference> difference;
  bool is_in_digest_alone = false;  // the values and marks that the log has are equal
};

RecordComparison compare_record(const Run& run, size_t index, const TokenRecord& again) {
  const TokenRecord& logged = run.records[index];
  TokenRecord record = again;
  const bool has_digests = !run.digests.empty();
  // Where the prediction is what was left out, the digest covers it.
  const bool is_covered = has_digests && is_redacted(run, index) && again.has_prediction &&
                          vitrine::record_digest(again) == run.digests[index];
  if (!logged.has_prediction && !is_covered) {
    record.has_prediction = false;
    record.prediction = {};
  }
  const uint64_t digest = has_digests ? vitrine::record_digest(record) : 0;
  const bool digests_differ = has_digests && digest != run.digests[index];
  MarkPair marks;
  if (has_digests) marks = {run.layer_marks[index], vitrine::layer_marks(record)};
  // A digest vouches for no readable value: whoever changed one may have kept it.
  auto difference = find_difference(run, logged, as_logged(run, record), 0,
                                    {.left = is_redacted(run, index)}, marks);
  if (difference || !digests_differ) return {std::move(difference)};
  return {Difference{-1, undetermined_part(run, index), fmt::format("{:016x}", run.digests[index]),
                     fmt::format("{:016x}", digest)},
          true};
}

/// Where a record's text is not that of its token; none where the log has no text.
std::optional<Difference> text_difference(const Run& run, size_t index,
                                          const vitrine::Tokenizer& tokenizer) {
  if (run.text.empty()) return {};
  const std::string& logged = run.text[index];
  if (logged.empty() && is_redacted(run, index)) return {};
  const int32_t token = run.records[index].token;
  const std::string text = token < tokenizer.vocab_size() ? tokenizer.token_text(token) : "";
  const auto quoted = [](const std::string& of) {
    return plain(nlohmann::json(of).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  };
  // JSON holds no bytes that are no UTF-8.
  if (!(run.report ? logged == text : quoted(logged) == quoted(text))) {
    return Difference{-1, "text", quoted(logged), quoted(text)};
  }
  if (run.spelling.empty()) return {};
  const std::string bytes = token < tokenizer.vocab_size() ? tokenizer.token_bytes(token) : "";
  const auto& [spelled, spelled_bytes] = run.spelling[index];
  if (quoted(spelled) == quoted(bytes) && spelled_bytes == bytes) return {};
  return Difference{-1, "text", quoted(spelled), quoted(bytes)};
}

/// True where the log left out which token followed, and no later record tells.
bool is_prediction_unknown(const Run& run, size_t index) {
  if (run.records[index].has_prediction || !is_redacted(run, index)) {
    return false;
  }
  const TokenRecord& record = run.records[index];
  const auto follows = [&](const TokenRecord& other) {
    return other.sequence == record.sequence && other.position == record.position + 1;
  };
  return std::none_of(run.records.begin() + static_cast<std::ptrdiff_t>(index) + 1,
                      run.records.end(), follows);
}

/// `tokenizer`: of the model that made the log; null where another one replays it.
ReplayComparison compare(const Run& run, const std::vector<std::optional<TokenRecord>>& again,
                         const vitrine::Tokenizer* tokenizer) {
  ReplayComparison result;
  for (size_t i = 0; i < run.records.size(); ++i) {
    if (!again[i]) {
      ++result.not_rerun;
      continue;
    }
    if (run.records[i].has_prediction) ++result.predictions;
    auto [difference, is_in_digest_alone] = compare_record(run, i, *again[i]);
    if (!difference && tokenizer != nullptr) difference = text_difference(run, i, *tokenizer);
    if (is_in_digest_alone && is_prediction_unknown(run, i)) {
      ++result.not_checked;
      continue;
    }
    ++(difference ? result.different : result.equal);
    if (!difference || result.difference) continue;
    result.first = i;
    result.difference = std::move(difference);
  }
  return result;
}

/// What of the runtime is other than the log's, or empty. `given`: the options that were.
std::string other_runtime(const Run& run, const vitrine::ModelSummary& model,
                          const DeviceOptions& given) {
  std::vector<std::string> all;
  const auto add = [&all](const char* what, const std::string& logged, const std::string& here) {
    if (logged != here) all.push_back(fmt::format("{} {} (logged: {})", what, here, plain(logged)));
  };
  add("device", run.header.device, model.device);
  add("kernels", run.header.kernels, model.kernels);
  add("instruction set", run.header.isa, model.isa);
  const std::tuple<const char*, const char*, const std::string&> options[] = {
      {"rope_frequencies", "rope frequencies", given.rope_frequencies},
      {"activation_type", "activation type", given.activation_type}};
  const auto logged = [&run](const std::string& option) -> std::string {
    const auto found =
        std::ranges::find(run.header.engine, option, &std::pair<std::string, std::string>::first);
    return found == run.header.engine.end() ? "not named" : found->second;
  };
  for (const auto& [option, name, value] : options) {
    if (!value.empty()) add(name, logged(option), value);  // empty: as the log says
  }
  // Not always what was asked for: CUDA's fused kernels have no integers.
  if (!given.kv_type.empty() || logged("kv_type") != "not named") {
    add("kv type", logged("kv_type"), model.kv_codec);
  }
  if (!model.invariant) {
    add("threads", std::to_string(run.header.threads), std::to_string(model.threads));
  }
  if (run.report && run.report->header.engine_build != vitrine::engine_build()) {
    all.push_back("another build of the engine");
  }
  return fmt::format("{}", fmt::join(all, ", "));
}

nlohmann::ordered_json comparison_json(const Run& run, const ReplayComparison& comparison) {
  nlohmann::ordered_json first = nullptr;
  if (comparison.difference) {
    const TokenRecord& record = run.records[comparison.first];
    const Difference& difference = *comparison.difference;
    first = {{"sequence", record.sequence},
             {"position", record.position},
             {"layer", difference.layer < 0 ? nlohmann::ordered_json(nullptr)
                                            : nlohmann::ordered_json(difference.layer)},
             {"value", difference.value},
             {"logged", difference.left},
             {"replayed", difference.right}};
  }
  return {{"equal", comparison.different == 0 && comparison.not_rerun == 0},
          {"compared", run.digests.empty() ? "values" : "digests"},
          {"records_equal", comparison.equal},
          {"records_different", comparison.different},
          {"records_not_replayed", comparison.not_rerun},
          {"records_not_checked", comparison.not_checked},
          {"predictions", comparison.predictions},
          {"first_difference", first}};
}

std::string comparison_text(const Run& run, const ReplayComparison& comparison) {
  std::string text;
  const char* how =
      run.digests.empty() ? "in every value that the log has" : "to the last bit (digests)";
  if (comparison.difference) {
    const TokenRecord& record = run.records[comparison.first];
    const Difference& difference = *comparison.difference;
    text += fmt::format("DIFFERENT: sequence {}, position {}, {}{}: {} logged, {} replayed\n",
                        record.sequence, record.position,
                        difference.layer < 0 ? "" : fmt::format("layer {}, ", difference.layer),
                        difference.value, difference.left, difference.right);
    text += fmt::format("{} records equal {}, {} different\n", comparison.equal, how,
                        comparison.different);
  } else {
    text += fmt::format("equal: {} records, {} of them with a prediction, {}\n", comparison.equal,
                        comparison.predictions, how);
  }
  if (comparison.not_checked > 0) {
    text += fmt::format("{} records were not checked: what followed them was left out\n",
                        comparison.not_checked);
  }
  if (comparison.not_rerun > 0) {
    text += fmt::format(
        "{} records were not replayed: they follow positions that are not in the "
        "log\n",
        comparison.not_rerun);
  }
  return text;
}

std::string choices_text(const Run& run, const Choices& choices) {
  if (choices.different == 0) {
    return fmt::format("the log's sampler and seed choose the same {} tokens again\n",
                       choices.equal);
  }
  const TokenRecord& record = run.records[choices.first];
  return fmt::format(
      "DIFFERENT CHOICE: sequence {}, position {}: token {} logged, {} chosen by the log's sampler "
      "and seed; {} of {} choices differ\n",
      record.sequence, record.position, record.prediction.token, choices.first_token,
      choices.different, choices.different + choices.equal);
}

/// Where what made the log is: the model, or the federation's file.
std::string replayed_path(const Run& run, const AuditArguments& arguments,
                          const std::string& logged, const char* what, const char* wanted) {
  if (!arguments.model.empty()) return arguments.model;
  std::error_code error;
  if (logged.empty() || !std::filesystem::exists(logged, error)) {
    refuse(fmt::format("{}: its {} '{}' is not there; expected it there, or --model {}", run.path,
                       what, plain(logged), wanted));
  }
  return logged;
}

/// `other`: how the model is another than the log's, or empty. `checkpoint`: of whose tokenizer.
int replay(const Run& run, const AuditArguments& arguments, const std::string& path,
           const std::string& other, const vitrine::Checkpoint& checkpoint,
           const std::unique_ptr<vitrine::Stepper>& engine) {
  const std::string runtime = other_runtime(run, engine->summary(), arguments.device);
  nlohmann::ordered_json json = {
      {"model", path},
      {"is_same_model", run.header.hashes.empty() ? nlohmann::ordered_json(nullptr)
                                                  : nlohmann::ordered_json(other.empty())},
      {"forced_routes", arguments.force_routes},
      {"runtime_difference",
       runtime.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(runtime)}};
  // Another model chooses as it likes; the log's choices are fed to it.
  const bool can_choose = other.empty() && logged_sampler(run).has_value();
  Choices choices;
  const auto again =
      rerun(run, *engine, arguments.force_routes && other.empty(), can_choose ? &choices : nullptr);
  std::optional<vitrine::Tokenizer> tokenizer;
  if (other.empty() && !run.text.empty()) {
    tokenizer = open_tokenizer(checkpoint, vitrine::read_model_facts(checkpoint));
  }
  const ReplayComparison comparison = compare(run, again, tokenizer ? &*tokenizer : nullptr);
  json.update(comparison_json(run, comparison));
  if (can_choose) {
    json["choices"] = {{"equal", choices.equal}, {"different", choices.different}};
  }
  std::string text;
  if (!is_complete(run)) {
    text = account_line(run) + "\n";
    json["account"] = account_line(run);
  }
  if (run.header.hashes.empty()) {
    text += "the log names no hashes: which model made it cannot be checked\n";
  }
  if (!runtime.empty()) text += "replayed with " + runtime + "\n";
  if (other.empty()) {
    text += comparison_text(run, comparison);
    if (can_choose) text += choices_text(run, choices);
  } else {
    const Drift free = measure_drift(run, again);
    const Drift forced = measure_drift(run, rerun(run, *engine, true, nullptr));
    json["drift"] = {{"free", drift_json(free)}, {"forced", drift_json(forced)}};
    text += fmt::format("another model: {}\n", other) + comparison_text(run, comparison) +
            drift_line("free", free) + drift_line("forced", forced) +
            "what is left when the recorded routes are forced is the weights'; the rest is the "
            "routes'\n";
  }
  arguments.json ? write_json(json) : write_out(text);
  const bool is_equal =
      comparison.different == 0 && comparison.not_rerun == 0 && choices.different == 0;
  return is_equal ? 0 : 1;
}

}  // namespace

int run_audit_replay(const AuditArguments& arguments) {
  const Run run = load_run(arguments.run, "", arguments.decrypt, arguments.most_bytes);
  require_replayable(run, arguments.force_routes);
  if (!run.federation.specialists.empty()) {
    const std::string path = replayed_path(run, arguments, logged_federation(run.header),
                                           "federation file", "FEDERATION.json");
    const vitrine::FederationSpec spec = load_federation_spec(path);
    spec.check_members();
    if (const std::string other = other_federation(run.header, spec); !other.empty()) {
      refuse(fmt::format("{}: {} is another federation than the log's ({}); expected the same one",
                         run.path, plain(path), other));
    }
    return replay(run, arguments, path, "", open_model(spec.specialists[0].model),
                  load_replayed(run, spec, arguments));
  }
  const std::string path = replayed_path(run, arguments, run.header.model_path, "model", "DIR");
  const vitrine::Checkpoint checkpoint = open_model(path);
  const std::string other = other_model(run.header, checkpoint);
  if (!other.empty() && (arguments.model.empty() || !arguments.force_routes)) {
    refuse(
        fmt::format("{}: {} is another model than the log's ({}); expected the same one, or "
                    "--model DIR with --force-routes to compare another",
                    run.path, plain(path), other));
  }
  return replay(run, arguments, path, other, checkpoint,
                load_replayed(run, path, arguments, !other.empty()));
}

}  // namespace cli

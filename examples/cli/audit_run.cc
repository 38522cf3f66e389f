#include "audit_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "model_hashes.h"

namespace cli {

namespace {

using nlohmann::json;

constexpr size_t kMaxJsonBytes = size_t{1} << 30;

float number(const json& value) {
  return value.is_number() ? value.get<float>() : std::numeric_limits<float>::quiet_NaN();
}

/// 16 hexadecimal digits; 0 for what is none.
uint64_t digest(const std::string& text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, status] = std::from_chars(text.data(), end, value, 16);
  return status == std::errc() && at == end ? value : 0;
}

vitrine::LayerRecord json_layer(const json& from) {
  vitrine::LayerRecord layer;
  layer.layer = from.at("layer").get<int32_t>();
  layer.residual_norm = number(from.at("residual_norm"));
  const json &experts = from.at("experts"), &weights = from.at("weights");
  for (size_t slot = 0; slot < experts.size(); ++slot) {
    layer.routes.push_back({experts.at(slot).get<int32_t>(), number(weights.at(slot))});
  }
  if (from.contains("router_probs")) {
    for (const json& value : from.at("router_probs")) layer.router_probs.push_back(number(value));
  }
  return layer;
}

vitrine::AttributionRecord json_attribution(const json& from) {
  using Kind = vitrine::AuditLayout::Term::Kind;
  vitrine::AttributionRecord attribution;
  const json& runner_up = from.at("runner_up");
  attribution.logit = number(from.at("logit"));
  attribution.rounding = number(from.at("rounding"));
  attribution.runner_up = runner_up.at("token").get<int32_t>();
  attribution.runner_up_logit = number(runner_up.at("logit"));
  attribution.runner_up_rounding = number(runner_up.at("rounding"));
  for (const json& term : from.at("terms")) {
    vitrine::TermRecord record;
    const std::string part = term.at("part").get<std::string>();
    for (int kind = 0; kind <= static_cast<int>(Kind::kShared); ++kind) {
      if (part == vitrine::term_kind_name(static_cast<Kind>(kind))) {
        record.kind = static_cast<Kind>(kind);
      }
    }
    record.layer = term.value("layer", -1);
    record.expert = term.value("expert", -1);
    record.value = number(term.at("value"));
    record.runner_up = number(term.at("runner_up"));
    attribution.terms.push_back(record);
  }
  return attribution;
}

double real(const json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

vitrine::FederationRecord json_federation(const json& from) {
  vitrine::FederationRecord federation;
  const bool has_shares = from.contains("joint");  // else its column was left out
  if (has_shares) {
    federation.joint = real(from.at("joint"));
    federation.log_normaliser = real(from.at("log_normaliser"));
    federation.residual = real(from.at("residual"));
  }
  for (const json& one : from.at("specialists")) {
    if (has_shares) {
      federation.specialists.push_back(
          {real(one.at("logprob")), real(one.at("weight")), real(one.at("share"))});
    }
    if (one.contains("attribution")) {
      federation.attributions.push_back(json_attribution(one.at("attribution")));
    }
  }
  return federation;
}

vitrine::AuditLayout::Federation json_federation_head(const json& from) {
  vitrine::AuditLayout::Federation head;
  head.combiner = from.at("combiner").get<std::string>();
  head.specialists = from.at("specialists").get<std::vector<std::string>>();
  using vitrine::ShareKind;
  const bool has_terms =
      from.at("shares").get<std::string>() == vitrine::share_kind_name(ShareKind::kTerm);
  head.shares = has_terms ? ShareKind::kTerm : ShareKind::kResponsibility;
  return head;
}

vitrine::TokenRecord json_record(const json& from) {
  vitrine::TokenRecord record;
  record.sequence = from.at("sequence").get<uint64_t>();
  record.position = from.at("position").get<int64_t>();
  record.token = from.at("token").get<int32_t>();
  for (const json& layer : from.at("layers")) record.layers.push_back(json_layer(layer));
  if (from.contains("hidden_states")) {
    for (const json& state : from.at("hidden_states")) {
      vitrine::HiddenStateRecord& to = record.hidden_states.emplace_back();
      to.layer = state.at("layer").get<int32_t>();
      for (const json& value : state.at("values")) to.values.push_back(number(value));
    }
  }
  const json& prediction = from.at("prediction");
  record.has_prediction = !prediction.is_null();
  if (!record.has_prediction) return record;
  record.prediction.token = prediction.at("token").get<int32_t>();
  record.prediction.generated = prediction.at("generated").get<bool>();
  record.prediction.logprob = number(prediction.at("logprob"));
  record.prediction.entropy = number(prediction.at("entropy"));
  if (prediction.contains("logits_digest")) {
    record.prediction.logits_digest = digest(prediction.at("logits_digest").get<std::string>());
  }
  if (prediction.contains("sampler")) {
    const json& sampler = prediction.at("sampler");
    record.prediction.sampled = {sampler.at("candidates").get<int32_t>(),
                                 number(sampler.at("probability"))};
  }
  if (prediction.contains("constraint")) {
    const json& from = prediction.at("constraint");
    vitrine::ConstraintDecision& constraint = record.prediction.constraint;
    constraint.allowed = from.at("allowed").get<int32_t>();
    constraint.removed = number(from.at("removed"));
    constraint.first_ruled_out = from.at("first_ruled_out").get<bool>();
    constraint.is_limited = from.at("limited").get<bool>();
    constraint.attempt = from.at("attempt").get<int32_t>();
    constraint.mask_microseconds = number(from.at("mask_us"));
  }
  for (const json& other : prediction.at("top_logprobs")) {
    record.prediction.alternatives.push_back(
        {other.at("token").get<int32_t>(), number(other.at("logprob"))});
  }
  if (prediction.contains("attribution")) {
    record.prediction.attribution = json_attribution(prediction.at("attribution"));
  }
  if (prediction.contains("federation")) {
    record.prediction.federation = json_federation(prediction.at("federation"));
  }
  return record;
}

/// A whole number that fits; nlohmann::json converts any other in silence.
template <typename Integer, typename Bad>
Integer whole(const json& from, const Bad& bad) {
  const double value = from.is_number() ? from.get<double>() : -2.0;
  constexpr double kLimit = 0x1p53;
  const bool fits = from.is_number_integer() && value >= -1 && value < kLimit &&
                    value <= static_cast<double>(std::numeric_limits<Integer>::max());
  if (!fits) {
    bad("a failure of a constraint has " + from.dump() +
        " where a number of tokens, bytes or the like is expected");
  }
  return static_cast<Integer>(from.get<int64_t>());
}

/// `bad` throws what it is told.
template <typename Bad>
vitrine::ConstraintFailure json_failure(const json& from, const Bad& bad) {
  using Failure = vitrine::ConstraintFailure;
  Failure failure;
  const std::string kind = from.at("kind").get<std::string>();
  int found = 0;
  while (found <= static_cast<int>(Failure::Kind::kError) &&
         kind != vitrine::constraint_failure_name(static_cast<Failure::Kind>(found))) {
    ++found;
  }
  if (found > static_cast<int>(Failure::Kind::kError)) {
    bad("a failure of a constraint is of kind " + json(kind).dump() +
        "; expected deadlock, refused, unfinished, rejected or error");
  }
  failure.kind = static_cast<Failure::Kind>(found);
  failure.attempt = whole<int32_t>(from.at("attempt"), bad);
  failure.sequence = whole<uint64_t>(from.at("sequence"), bad);
  failure.position = whole<int64_t>(from.at("position"), bad);
  failure.token = whole<int32_t>(from.value("token", json(-1)), bad);
  failure.allowed = whole<int32_t>(from.value("allowed", json(0)), bad);
  failure.in_time = whole<int32_t>(from.value("in_time", json(0)), bad);
  failure.message = from.value("message", "");
  failure.state.num_bytes = whole<int64_t>(from.at("bytes"), bad);
  failure.state.num_readings = whole<int64_t>(from.at("num_readings"), bad);
  failure.state.readings = from.at("readings").get<std::vector<std::string>>();
  failure.state.next_bytes = from.at("next_bytes").get<std::string>();
  failure.state.completion = from.at("completion").get<std::string>();
  return failure;
}

void read_json(Run& run) {
  const json log = parse_shallow_json(run.path, kMaxJsonBytes, 16, "a log of vitrine");
  const auto bad = [&](const std::string& what) {
    throw vitrine::Error(vitrine::ErrorKind::kBadFile,
                         run.path + ": " + what + "; expected a log of vitrine generate --audit");
  };
  if (log.is_discarded()) bad("not valid JSON");
  if (!log.is_object() || log.value("schema", "") != "vitrine.audit/1") {
    bad("no audit log of schema vitrine.audit/1");
  }
  try {
    const json &model = log.at("model"), &runtime = log.at("runtime");
    run.header.model_path = model.at("path").get<std::string>();
    run.header.architecture = model.at("architecture").get<std::string>();
    run.header.num_layers = model.at("num_layers").get<int32_t>();
    run.header.vocab_size = model.at("vocab_size").get<int32_t>();
    for (const auto& [name, hash] : model.at("sha256").items()) {
      run.header.hashes.emplace_back(name, hash.get<std::string>());
    }
    run.header.device = runtime.at("device").get<std::string>();
    run.header.kernels = runtime.at("kernels").get<std::string>();
    run.header.isa = runtime.at("isa").get<std::string>();
    run.header.threads = runtime.at("threads").get<int>();
    const json engine = runtime.value("options", json::object());
    for (const auto& [name, value] : engine.items()) {
      run.header.engine.emplace_back(name, value.get<std::string>());
    }
    run.header.seed = log.at("seed").get<uint64_t>();
    for (const auto& [name, value] : log.at("sampler").items()) {
      run.header.sampler.emplace_back(name,
                                      value.is_string() ? value.get<std::string>() : value.dump());
    }
    const json constraint = log.value("constraint", json::object());
    for (const auto& [name, value] : constraint.items()) {
      run.header.constraint.emplace_back(name, value.get<std::string>());
    }
    run.level = log.at("audit").at("level").get<std::string>();
    run.mode = log.at("audit").at("mode").get<std::string>();
    run.is_rounded = log.at("audit").value("rounded", false);
    run.stop_reason = log.at("stop_reason").get<std::string>();
    for (const json& failure : log.value("constraint_failures", json::array())) {
      run.failures.push_back(json_failure(failure, bad));
    }
    if (log.at("audit").contains("hidden_state_layers")) {
      run.hidden_state_layers = log.at("audit").at("hidden_state_layers").get<std::vector<int>>();
    }
    if (log.at("audit").contains("federation")) {
      run.federation = json_federation_head(log.at("audit").at("federation"));
    }
    for (const json& layer : log.at("audit").at("layers")) {
      run.layer_numbers.push_back(layer.at("layer").get<uint32_t>());
      const auto experts = layer.at("num_experts").get<uint32_t>();
      if (experts > 65536) bad("a layer of more than 65536 experts");
      run.uses.emplace_back(experts, 0);
    }
    for (const json& record : log.at("records")) {
      run.records.push_back(json_record(record));
      const vitrine::FederationRecord& of = run.records.back().prediction.federation;
      const size_t named = run.federation.specialists.size();
      for (const size_t count : {of.specialists.size(), of.attributions.size()}) {
        if (count == 0 || count == named) continue;
        bad(fmt::format("a record tells of {} specialists and the head names {}", count, named));
      }
      if (record.contains("text")) run.text.push_back(record.at("text").get<std::string>());
    }
    if (run.text.size() != run.records.size()) run.text.clear();
    if (log.at("counts").at("tokens").get<uint64_t>() != run.records.size()) {
      bad(fmt::format("counts.tokens is {} and there are {} records",
                      log.at("counts").at("tokens").dump(), run.records.size()));
    }
    if (const auto lost = log.at("counts").find("lost"); lost != log.at("counts").end()) {
      if (!lost->is_number_unsigned()) bad("counts.lost is " + lost->dump() + ", no count");
      run.lost = lost->get<uint64_t>();
    }
  } catch (const json::exception& error) {
    bad(error.what());
  }
}

void read_vtr(Run& run, const std::optional<vitrine::SealKey>& key) {
  run.report = vitrine::verify_vtr(run.path, {}, key);
  vitrine::VtrReader reader(run.path, key);
  const vitrine::VtrHeader& header = reader.header();
  run.header = header.log;
  run.level = vitrine::log_detail_name(header.detail);
  run.is_rounded = header.detail == vitrine::LogDetail::kStandard;
  run.mode = header.mode == vitrine::AuditMode::kNaive ? "naive" : "deferred";
  run.hidden_state_layers = header.hidden_state_layers;
  run.federation = header.federation;
  for (const auto& layer : header.layers) {
    run.layer_numbers.push_back(static_cast<uint32_t>(layer.layer));
    run.uses.emplace_back(static_cast<size_t>(layer.num_experts), 0);
  }
  vitrine::VtrPage page;
  try {
    while (reader.next(page)) {
      for (const vitrine::VtrEvent& event : page.events) {
        run.events.emplace_back(run.records.size() + event.row, event);
      }
      run.is_redacted.insert(run.is_redacted.end(), page.is_redacted.begin(),
                             page.is_redacted.end());
      run.records.insert(run.records.end(), page.records.begin(), page.records.end());
      run.failures.insert(run.failures.end(), page.failures.begin(), page.failures.end());
      run.digests.insert(run.digests.end(), page.digests.begin(), page.digests.end());
      page.layer_marks.resize(page.records.size());
      run.layer_marks.insert(run.layer_marks.end(), page.layer_marks.begin(),
                             page.layer_marks.end());
      if (header.has_text) page.text.resize(page.records.size());  // empty: it was left out
      run.text.insert(run.text.end(), page.text.begin(), page.text.end());
      for (size_t layer = 0; layer < page.expert_uses.size(); ++layer) {
        for (size_t expert = 0; expert < run.uses[layer].size(); ++expert) {
          run.uses[layer][expert] += page.expert_uses[layer][expert];
        }
      }
    }
  } catch (const vitrine::Error& error) {
    // What is readable before the damage is shown; the first line says that there is damage.
    if (error.kind() != vitrine::ErrorKind::kBadFile) throw;
  }
  if (run.text.size() != run.records.size()) run.text.clear();
  if (reader.end()) run.stop_reason = reader.end()->stop_reason;
}

}  // namespace

std::shared_ptr<vitrine::Tokenizer> find_tokenizer(const vitrine::LogHeader& header,
                                                   const std::string& model) {
  const std::filesystem::path folder = model.empty() ? header.model_path : model;
  std::error_code error;
  const bool is_gguf = std::filesystem::is_regular_file(folder, error);
  const std::filesystem::path file = is_gguf ? folder : folder / "tokenizer.json";
  if (!std::filesystem::is_regular_file(file, error)) {
    if (!model.empty()) refuse(fmt::format("--model {}: there is no tokenizer.json", model));
    return nullptr;
  }
  const bool is_single = is_gguf && header.hashes.size() == 1;  // whatever its name is now
  for (const auto& [name, hash] : header.hashes) {
    if (!is_single && name != file.filename().string()) continue;
    if (hash == file_hash(file.string())) continue;
    if (!model.empty()) {
      refuse(
          fmt::format("--model {}: its {} is another than the log's (SHA-256 {}); expected the "
                      "model that made the log",
                      model, name, hash));
    }
    return nullptr;
  }
  if (is_gguf) {
    return std::make_shared<vitrine::Tokenizer>(
        open_tokenizer(vitrine::Checkpoint::open(file.string())));
  }
  return std::make_shared<vitrine::Tokenizer>(vitrine::Tokenizer::from_file(file.string()));
}

std::vector<const vitrine::AttributionRecord*> attributions_of(
    const vitrine::PredictionRecord& prediction) {
  std::vector<const vitrine::AttributionRecord*> all;
  if (!prediction.attribution.terms.empty()) all.push_back(&prediction.attribution);
  for (const vitrine::AttributionRecord& of : prediction.federation.attributions) {
    all.push_back(&of);
  }
  return all;
}

std::optional<vitrine::SealKey> reader_key(const std::string& path) {
  if (path.empty()) return std::nullopt;
  return vitrine::SealKey::load(path);
}

void require_tokens(const Run& run, const char* command) {
  if (run.level != "counters") return;
  refuse(
      fmt::format("{}: level counters keeps nothing of a single token; {} expects a log of level "
                  "standard or full",
                  run.path, command));
}

Run load_run(const std::string& path, const std::string& model, const std::string& decrypt) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    refuse(fmt::format("run '{}' is {}; expected a .vtr or .json log", path,
                       std::filesystem::exists(path, error) ? "not a file" : "not there"));
  }
  Run run;
  run.path = path;
  if (std::filesystem::path(path).extension() == ".json") {
    read_json(run);
  } else {
    read_vtr(run, reader_key(decrypt));
  }
  for (const vitrine::TokenRecord& record : run.records) {
    for (size_t i = 0; i < record.layers.size() && i < run.uses.size(); ++i) {
      for (const vitrine::RouteRecord& route : record.layers[i].routes) {
        const auto expert = static_cast<size_t>(route.expert);
        if (route.expert >= 0 && expert < run.uses[i].size()) ++run.uses[i][expert];
      }
    }
  }
  run.tokenizer = find_tokenizer(run.header, model);
  for (size_t i = 0; !run.tokenizer && i < run.text.size(); ++i) {
    if (run.text[i].empty()) continue;  // left out
    run.pieces.emplace(run.records[i].token, run.text[i]);
  }
  return run;
}

bool is_redacted(const Run& run, size_t index) {
  return index < run.is_redacted.size() && run.is_redacted[index];
}

std::string hidden_text(const Run& run) {
  const auto hidden = std::count(run.is_redacted.begin(), run.is_redacted.end(), true);
  const bool is_closed = run.report && run.report->closed_groups > 0;
  if (hidden == 0 && !is_closed) return "";
  return fmt::format("{} of {} records lack columns that were left out{}", hidden,
                     run.records.size(),
                     is_closed ? " or are encrypted (--decrypt KEYFILE, of a recipient)" : "");
}

std::string hidden_line(const Run& run) {
  const std::string text = hidden_text(run);
  return text.empty() ? "" : "hidden    " + text + "\n";
}

std::string plain(const std::string& text) {
  std::string out;
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    out += byte < 0x20 || byte == 0x7F ? '?' : character;
  }
  // C1 controls, as UTF-8: 0xC2 0x80 to 0xC2 0x9F.
  for (size_t i = 0; i + 1 < out.size(); ++i) {
    if (static_cast<unsigned char>(out[i]) == 0xC2 &&
        static_cast<unsigned char>(out[i + 1]) < 0xA0) {
      out[i] = out[i + 1] = '?';
    }
  }
  // What turns the direction of the text behind it: U+202A to U+202E, U+2066 to U+2069.
  for (size_t i = 0; i + 2 < out.size(); ++i) {
    const auto last = static_cast<unsigned char>(out[i + 2]);
    const bool turns = (out.compare(i, 2, "\xE2\x80") == 0 && last >= 0xAA && last <= 0xAE) ||
                       (out.compare(i, 2, "\xE2\x81") == 0 && last >= 0xA6 && last <= 0xA9);
    if (turns) out.replace(i, 3, "?");
  }
  return out;
}

std::string Run::quoted(int32_t token) const {
  if (token < 0) return "-";
  const auto in_quotes = [](const std::string& bytes) {
    return plain(json(bytes).dump(-1, ' ', false, json::error_handler_t::replace));
  };
  if (tokenizer && token < tokenizer->vocab_size()) {
    return in_quotes(tokenizer->token_bytes(token));
  }
  const auto piece = pieces.find(token);
  return piece == pieces.end() ? fmt::format("#{}", token) : in_quotes(piece->second);
}

Colours Colours::of_output() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  const bool is_dumb = terminal != nullptr && std::string_view(terminal) == "dumb";
  if (::isatty(STDOUT_FILENO) == 0 || is_dumb || (no_color != nullptr && *no_color != '\0')) {
    return {};
  }
  return {"\x1b[2m", "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[34m", "\x1b[0m"};
}

const char* Colours::of_surprise(float logprob) const {
  if (logprob > -0.7f) return dim;     // more likely than not
  if (logprob > -2.3f) return "";      // more than one in ten
  if (logprob > -4.6f) return yellow;  // more than one in a hundred
  return red;
}

}  // namespace cli

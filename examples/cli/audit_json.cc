// SPDX-License-Identifier: Apache-2.0
#include "audit_json.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>

namespace cli {

namespace {

using nlohmann::json;

constexpr size_t kMaxJsonBytes = size_t{1} << 30;

/// What is said of the file, behind its name.
struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A whole number that fits, from 0 or, where it has a sign, from -1 (left out); nlohmann::json
/// converts any other in silence. `what` has it.
template <typename Integer>
Integer whole(const json& from, const char* what = "a record",
              int64_t most = std::numeric_limits<int64_t>::max()) {
  const double value = from.is_number() ? from.get<double>() : -2.0;
  constexpr double kLimit = 0x1p53, kLeast = std::is_signed_v<Integer> ? -1 : 0;
  const bool fits = from.is_number_integer() && value >= kLeast && value < kLimit &&
                    value <= static_cast<double>(std::numeric_limits<Integer>::max()) &&
                    value <= static_cast<double>(most);
  if (!fits) {
    throw Malformed(
        fmt::format("{} has {} where a number of tokens, bytes or the like is expected", what,
                    from.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 40)));
  }
  return static_cast<Integer>(from.get<int64_t>());
}

/// null: NaN, or left out.
double real(const json& value, double most = std::numeric_limits<double>::max()) {
  if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  const double found = value.is_number() ? value.get<double>() : most * 2;
  if (!(std::fabs(found) <= most)) {
    throw Malformed(
        fmt::format("a record has {} where a number that fits, or null, is expected",
                    value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 40)));
  }
  return found;
}
float number(const json& value) {
  return static_cast<float>(real(value, std::numeric_limits<float>::max()));
}

/// A number, or its digits where it is large.
uint64_t json_seed(const json& from) {
  uint64_t seed = 0;
  if (!read_seed(from, seed)) {
    throw Malformed(fmt::format(
        "seed is {}, expected a whole number from 0 to 2^64 - 1, or its digits as a text",
        from.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 40)));
  }
  return seed;
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
  layer.layer = whole<int32_t>(from.at("layer"));
  layer.residual_norm = number(from.at("residual_norm"));
  const json &experts = from.at("experts"), &weights = from.at("weights");
  for (size_t slot = 0; slot < experts.size(); ++slot) {
    layer.routes.push_back({whole<int32_t>(experts.at(slot)), number(weights.at(slot))});
  }
  if (from.contains("scores")) {
    const json &scores = from.at("scores"), &keys = from.at("selection_keys");
    for (size_t slot = 0; slot < experts.size(); ++slot) {
      layer.selection.push_back({number(scores.at(slot)), number(keys.at(slot))});
    }
  }
  for (size_t slot = 0; from.contains("expert_norms") && slot < experts.size(); ++slot) {
    layer.expert_norms.push_back(number(from.at("expert_norms").at(slot)));
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
  attribution.runner_up = whole<int32_t>(runner_up.at("token"));
  attribution.runner_up_logit = number(runner_up.at("logit"));
  attribution.runner_up_rounding = number(runner_up.at("rounding"));
  for (const json& term : from.at("terms")) {
    vitrine::TermRecord record;
    const std::string part = term.at("part").get<std::string>();
    for (int kind = 0; kind <= static_cast<int>(Kind::kSoftCap); ++kind) {
      if (part == vitrine::term_kind_name(static_cast<Kind>(kind))) {
        record.kind = static_cast<Kind>(kind);
      }
    }
    record.layer = whole<int32_t>(term.value("layer", json(-1)));
    record.expert = whole<int32_t>(term.value("expert", json(-1)));
    record.value = number(term.at("value"));
    record.runner_up = number(term.at("runner_up"));
    attribution.terms.push_back(record);
  }
  return attribution;
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
  record.sequence = whole<uint64_t>(from.at("sequence"));
  record.position = whole<int64_t>(from.at("position"), "a record", kMaxPositions);
  record.token = whole<int32_t>(from.at("token"));
  for (const json& layer : from.at("layers")) record.layers.push_back(json_layer(layer));
  if (from.contains("hidden_states")) {
    for (const json& state : from.at("hidden_states")) {
      vitrine::HiddenStateRecord& to = record.hidden_states.emplace_back();
      to.layer = whole<int32_t>(state.at("layer"));
      for (const json& value : state.at("values")) to.values.push_back(number(value));
    }
  }
  const json& prediction = from.at("prediction");
  record.has_prediction = !prediction.is_null();
  if (!record.has_prediction) return record;
  record.prediction.token = whole<int32_t>(prediction.at("token"));
  record.prediction.generated = prediction.at("generated").get<bool>();
  record.prediction.logprob = number(prediction.at("logprob"));
  record.prediction.entropy = number(prediction.at("entropy"));
  if (prediction.contains("logits_digest")) {
    record.prediction.logits_digest = digest(prediction.at("logits_digest").get<std::string>());
  }
  if (prediction.contains("sampler")) {
    const json& sampler = prediction.at("sampler");
    record.prediction.sampled = {whole<int32_t>(sampler.at("candidates")),
                                 number(sampler.at("probability"))};
  }
  if (prediction.contains("constraint")) {
    const json& from = prediction.at("constraint");
    vitrine::ConstraintDecision& constraint = record.prediction.constraint;
    constraint.allowed = whole<int32_t>(from.at("allowed"));
    constraint.removed = number(from.at("removed"));
    constraint.first_ruled_out = from.at("first_ruled_out").get<bool>();
    constraint.is_limited = from.at("limited").get<bool>();
    constraint.attempt = whole<int32_t>(from.at("attempt"));
    constraint.mask_microseconds = number(from.at("mask_us"));
  }
  for (const json& other : prediction.at("top_logprobs")) {
    record.prediction.alternatives.push_back(
        {whole<int32_t>(other.at("token")), number(other.at("logprob"))});
  }
  if (prediction.contains("attribution")) {
    record.prediction.attribution = json_attribution(prediction.at("attribution"));
  }
  if (prediction.contains("federation")) {
    record.prediction.federation = json_federation(prediction.at("federation"));
  }
  return record;
}

vitrine::ConstraintFailure json_failure(const json& from) {
  constexpr const char* kOfFailure = "a failure of a constraint";
  using Failure = vitrine::ConstraintFailure;
  Failure failure;
  const std::string kind = from.at("kind").get<std::string>();
  int found = 0;
  while (found <= static_cast<int>(Failure::Kind::kError) &&
         kind != vitrine::constraint_failure_name(static_cast<Failure::Kind>(found))) {
    ++found;
  }
  if (found > static_cast<int>(Failure::Kind::kError)) {
    throw Malformed("a failure of a constraint is of kind " + json(kind).dump() +
                    "; expected deadlock, refused, unfinished, rejected or error");
  }
  failure.kind = static_cast<Failure::Kind>(found);
  failure.attempt = whole<int32_t>(from.at("attempt"), kOfFailure);
  failure.sequence = whole<uint64_t>(from.at("sequence"), kOfFailure);
  failure.position = whole<int64_t>(from.at("position"), kOfFailure);
  failure.token = whole<int32_t>(from.value("token", json(-1)), kOfFailure);
  failure.allowed = whole<int32_t>(from.value("allowed", json(0)), kOfFailure);
  failure.in_time = whole<int32_t>(from.value("in_time", json(0)), kOfFailure);
  failure.message = from.value("message", "");
  failure.state.num_bytes = whole<int64_t>(from.at("bytes"), kOfFailure);
  failure.state.num_readings = whole<int64_t>(from.at("num_readings"), kOfFailure);
  failure.state.readings = from.at("readings").get<std::vector<std::string>>();
  failure.state.next_bytes = from.at("next_bytes").get<std::string>();
  failure.state.completion = from.at("completion").get<std::string>();
  return failure;
}

vitrine::DraftedPass json_drafts(const json& from) {
  constexpr const char* kOfDrafts = "guesses of a pass";
  const auto numbers = [&](const char* field, int64_t least, int64_t most) {
    std::vector<int32_t> values;
    for (const json& value : from.at(field)) {
      values.push_back(whole<int32_t>(value, kOfDrafts));
      if (values.back() >= least && values.back() < most) continue;
      throw Malformed(fmt::format("guesses of a pass have {} in field '{}'; expected {} to {}",
                                  values.back(), field, least, most - 1));
    }
    return values;
  };
  vitrine::DraftedPass drafts;
  drafts.sequence = whole<uint64_t>(from.at("sequence"), kOfDrafts);
  drafts.position = whole<int64_t>(from.at("position"), kOfDrafts);
  drafts.drafter = from.at("drafter").get<std::string>();
  drafts.tokens = numbers("tokens", 0, int64_t{1} << 31);
  const auto count = std::ssize(drafts.tokens);
  if (from.contains("parents")) drafts.parents = numbers("parents", -1, count);
  drafts.accepted = numbers("accepted", 0, count);
  drafts.discarded = whole<int32_t>(from.at("discarded"), kOfDrafts);
  if (drafts.discarded < 0 || drafts.discarded > count) {
    throw Malformed(fmt::format("guesses of a pass have {} in field 'discarded'; expected 0 to {}",
                                drafts.discarded, count));
  }
  if (!drafts.parents.empty() && std::ssize(drafts.parents) != count) {
    throw Malformed(fmt::format("guesses of a pass have {} in field 'parents'; expected {}",
                                drafts.parents.size(), count));
  }
  for (size_t i = 0; i < drafts.parents.size(); ++i) {
    if (drafts.parents[i] < static_cast<int32_t>(i)) continue;
    throw Malformed(fmt::format("guess {} of a pass stands behind guess {}; expected one before it",
                                i, drafts.parents[i]));
  }
  return drafts;
}

void read_forks(Run& run, const json& forks) {
  for (const json& from : forks) {
    vitrine::VtrEvent fork;
    fork.kind = vitrine::VtrEvent::Kind::kForked;
    const auto record = whole<uint64_t>(from.at("record"), "a fork");
    fork.sequence = whole<uint64_t>(from.at("sequence"), "a fork");
    fork.source = whole<uint64_t>(from.at("source"), "a fork");
    fork.count = whole<int64_t>(from.at("length"), "a fork");
    const size_t before = run.events.empty() ? 0 : run.events.back().first;
    if (record < before || record > run.records.size() || fork.count < 0) {
      throw Malformed(
          fmt::format("a fork of length {} stands behind {} of {} records; expected ascending "
                      "places among them, and a length of 0 or more",
                      fork.count, record, run.records.size()));
    }
    if (fork.sequence == fork.source) {
      throw Malformed(fmt::format("sequence {} is a fork of itself", fork.sequence));
    }
    run.events.emplace_back(record, fork);
  }
}

/// The first position that the records skip, in words; empty where there is none.
std::string skipped_position(const Run& run) {
  std::map<uint64_t, int64_t> lengths;
  size_t event = 0;
  for (size_t i = 0; i < run.records.size(); ++i) {
    for (; event < run.events.size() && run.events[event].first <= i; ++event) {
      const vitrine::VtrEvent& fork = run.events[event].second;
      const int64_t shared = lengths[fork.source];
      if (fork.count > shared) {
        return fmt::format("sequence {} shares {} positions of sequence {}, which has {}",
                           fork.sequence, fork.count, fork.source, shared);
      }
      lengths[fork.sequence] = fork.count;
    }
    const vitrine::TokenRecord& record = run.records[i];
    int64_t& length = lengths[record.sequence];
    if (record.position < 0 || record.position > length) {
      return fmt::format("sequence {} has a record at position {} where {} is next",
                         record.sequence, record.position, length);
    }
    length = record.position + 1;
  }
  return "";
}

/// What the log says of itself that its records contradict; empty where nothing does.
std::string contradiction(const Run& run) {
  const std::pair<uint64_t, uint64_t> readable = readable_predictions(run);
  // Which records predicted something may be what was left out.
  const auto [generated, scored] = *run.counted;
  const bool fits = std::ranges::find(run.is_redacted, true) == run.is_redacted.end()
                        ? readable == *run.counted
                        : readable.first <= generated && readable.second <= scored;
  if (!fits) {
    return fmt::format(
        "it counts {} generated and {} scored predictions, its records have {} and "
        "{}",
        generated, scored, readable.first, readable.second);
  }
  return run.lost > 0 || run.stop_reason == "open" ? "" : skipped_position(run);
}

[[noreturn]] void refuse_log(const Run& run, const std::string& what) {
  throw vitrine::Error(vitrine::ErrorKind::kBadFile,
                       run.path + ": " + what + "; expected a log of vitrine generate --audit");
}

/// Reads what ran, and how it was asked to.
void read_head(const json& log, Run& run) {
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
  run.header.seed = json_seed(log.at("seed"));
  run.engine_build = log.value("engine_build", "");
  run.header.host_name = log.value("host_name", "");
  if (log.contains("started")) {
    const json& started = log.at("started");
    run.started_unix_ns = json_seed(started.at("unix_ns"));
    if (started.contains("monotonic_ns")) {
      run.started_monotonic_ns = json_seed(started.at("monotonic_ns"));
    }
  }
  for (const auto& [name, value] : log.at("sampler").items()) {
    run.header.sampler.emplace_back(name,
                                    value.is_string() ? value.get<std::string>() : value.dump());
  }
  const json constraint = log.value("constraint", json::object());
  for (const auto& [name, value] : constraint.items()) {
    run.header.constraint.emplace_back(name, value.get<std::string>());
  }
  const json speculation = log.value("speculation", json::object());
  for (const auto& [name, value] : speculation.items()) {
    run.header.speculation.emplace_back(name, value.get<std::string>());
  }
}

/// Reads what was recorded, and of which layers.
void read_account(const json& log, Run& run) {
  const json& audit = log.at("audit");
  run.level = audit.at("level").get<std::string>();
  run.mode = audit.at("mode").get<std::string>();
  run.is_rounded = audit.value("rounded", false);
  run.stop_reason = log.at("stop_reason").get<std::string>();
  for (const json& failure : log.value("constraint_failures", json::array())) {
    run.failures.push_back(json_failure(failure));
  }
  for (const json& drafts : log.value("drafts", json::array())) {
    run.drafts.push_back(json_drafts(drafts));
  }
  if (audit.contains("hidden_state_layers")) {
    run.hidden_state_layers = audit.at("hidden_state_layers").get<std::vector<int>>();
  }
  if (audit.contains("federation")) {
    run.federation = json_federation_head(audit.at("federation"));
  }
  for (const json& layer : audit.at("layers")) {
    run.layer_numbers.push_back(layer.at("layer").get<uint32_t>());
    const auto experts = layer.at("num_experts").get<uint32_t>();
    if (experts > 65536) refuse_log(run, "a layer of more than 65536 experts");
    run.uses.emplace_back(experts, 0);
  }
}

/// [layer] as the head names it; logs from before a router's kind stood there have none.
std::vector<vitrine::RouterKind> json_routers(const json& layers) {
  using vitrine::RouterKind;
  std::vector<RouterKind> routers;
  for (const json& layer : layers) {
    const std::string name = layer.value("router", "plain");
    RouterKind& router = routers.emplace_back(RouterKind::kPlain);
    for (const RouterKind kind : {RouterKind::kSoftmaxScores, RouterKind::kSigmoidScores}) {
      if (name == vitrine::router_kind_name(kind)) router = kind;
    }
    if (name != vitrine::router_kind_name(router)) {
      throw Malformed("a layer's router is " + json(name).dump() +
                      "; expected plain, softmax or sigmoid");
    }
  }
  return routers;
}

/// `where`: the record under way, for a message.
void read_records(const json& log, Run& run, std::string& where) {
  const std::vector<vitrine::RouterKind> routers = json_routers(log.at("audit").at("layers"));
  for (const json& record : log.at("records")) {
    where = fmt::format("record {}: ", run.records.size());
    run.records.push_back(json_record(record));
    std::vector<vitrine::LayerRecord>& layers = run.records.back().layers;
    for (size_t i = 0; i < std::min(layers.size(), routers.size()); ++i) {
      layers[i].router = routers[i];
    }
    const vitrine::FederationRecord& of = run.records.back().prediction.federation;
    const size_t named = run.federation.specialists.size();
    for (const size_t count : {of.specialists.size(), of.attributions.size()}) {
      if (count == 0 || count == named) continue;
      refuse_log(
          run, fmt::format("a record tells of {} specialists and the head names {}", count, named));
    }
    run.is_redacted.push_back(record.value("redacted", false));
    // Logs from before there was a piece have it as the text.
    const char* key = record.contains("piece") ? "piece" : "text";
    if (record.contains(key)) run.text.push_back(record.at(key).get<std::string>());
    if (record.contains("bytes")) {
      const auto bytes = record.at("bytes").get<std::vector<uint8_t>>();
      run.spelling.emplace_back(record.at("text").get<std::string>(),
                                std::string(bytes.begin(), bytes.end()));
    }
  }
  where.clear();
  if (run.text.size() != run.records.size()) run.text.clear();
  if (run.spelling.size() != run.records.size()) run.spelling.clear();
}

void read_counts(const json& log, Run& run) {
  if (log.at("counts").at("tokens").get<uint64_t>() != run.records.size()) {
    refuse_log(run, fmt::format("counts.tokens is {} and there are {} records",
                                log.at("counts").at("tokens").dump(), run.records.size()));
  }
  const json& counts = log.at("counts");
  run.counted = {whole<uint64_t>(counts.at("generated"), "counts.generated"),
                 whole<uint64_t>(counts.at("scored"), "counts.scored")};
  run.lost = whole<uint64_t>(counts.value("lost", json(0)), "counts.lost");
}

}  // namespace

void read_json(Run& run) {
  const json log = parse_shallow_json(run.path, kMaxJsonBytes, 16, "a log of vitrine");
  if (log.is_discarded()) refuse_log(run, "not valid JSON");
  if (!log.is_object() || log.value("schema", "") != "vitrine.audit/1") {
    refuse_log(run, "no audit log of schema vitrine.audit/1");
  }
  std::string where;
  try {
    read_head(log, run);
    read_account(log, run);
    read_records(log, run, where);
    read_counts(log, run);
    read_forks(run, log.value("forks", json::array()));
    run.problem = contradiction(run);
  } catch (const json::exception& error) {
    // Behind the name of the library's exception.
    const std::string_view text = error.what();
    refuse_log(run, where + "a field is missing or of another type: " +
                        std::string(text.substr(std::min(text.size(), text.find("] ") + 2))));
  } catch (const Malformed& error) {
    refuse_log(run, where + error.what());
  }
}

}  // namespace cli

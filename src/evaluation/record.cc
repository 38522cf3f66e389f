// SPDX-License-Identifier: Apache-2.0
#include "evaluation/record.h"

#include <sodium.h>

#include <array>
#include <bit>
#include <cmath>

#include "core/json_text.h"
#include "evaluation/digest.h"

namespace vitrine::evaluation {

namespace {

constexpr std::array<std::string_view, 3> kKindNames = {"answer", "choice", "text"};

[[noreturn]] void refuse(const std::string& place, const std::string& what) {
  throw Error(ErrorKind::kBadFile, place + ": " + what);
}

const Json& need(const Json& json, const char* name, const std::string& place) {
  const auto found = json.find(name);
  if (found == json.end()) refuse(place, std::string("has no '") + name + "'; expected it");
  return *found;
}

/// Reads a field where it is there.
template <typename Value>
void read_field(const Json& json, const char* name, const std::string& place, Value& value) {
  const auto found = json.find(name);
  if (found == json.end()) return;
  const bool fits = [&] {
    if constexpr (std::is_same_v<Value, std::string>)
      return found->is_string();
    else if constexpr (std::is_same_v<Value, bool>)
      return found->is_boolean();
    else if constexpr (std::is_integral_v<Value>)
      return found->is_number_integer();
    else if constexpr (std::is_floating_point_v<Value>)
      return found->is_number();
    else
      return found->is_array() || found->is_object();
  }();
  if (!fits) {
    refuse(place, std::string("'") + name + "' is " + found_text(*found) +
                      "; expected another type of value");
  }
  try {
    value = found->get<Value>();
  } catch (const Json::exception&) {
    refuse(place, std::string("'") + name + "' holds values of another type");
  }
}

// Bits are kept: base64 of little-endian numbers.
template <typename Number>
std::string pack(const std::vector<Number>& values) {
  std::string bytes;
  for (const Number value : values) {
    using Bits = std::conditional_t<sizeof(Number) == 8, uint64_t, uint32_t>;
    const auto bits = std::bit_cast<Bits>(value);
    for (size_t i = 0; i < sizeof(Number); ++i) bytes += static_cast<char>(bits >> (8 * i));
  }
  std::string text(sodium_base64_encoded_len(bytes.size(), sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const uint8_t*>(bytes.data()),
                    bytes.size(), sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();  // the zero behind it
  return text;
}

template <typename Number>
std::vector<Number> unpack(const Json& json, const char* name, const std::string& place) {
  const auto found = json.find(name);
  if (found == json.end()) return {};
  if (!found->is_string()) refuse(place, std::string("'") + name + "' is no text; expected base64");
  const std::string& text = found->get_ref<const std::string&>();
  std::string bytes(text.size(), '\0');
  size_t size = 0;
  const char* end = nullptr;
  const int failed =
      sodium_base642bin(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size(), text.data(),
                        text.size(), nullptr, &size, &end, sodium_base64_VARIANT_ORIGINAL);
  if (failed != 0 || end != text.data() + text.size() || size % sizeof(Number) != 0) {
    refuse(place, std::string("'") + name + "' is no base64 of numbers with " +
                      std::to_string(sizeof(Number)) + " bytes each");
  }
  using Bits = std::conditional_t<sizeof(Number) == 8, uint64_t, uint32_t>;
  std::vector<Number> values(size / sizeof(Number));
  for (size_t i = 0; i < values.size(); ++i) {
    Bits bits = 0;
    for (size_t b = 0; b < sizeof(Number); ++b) {
      bits |= Bits{static_cast<uint8_t>(bytes[i * sizeof(Number) + b])} << (8 * b);
    }
    values[i] = std::bit_cast<Number>(bits);
  }
  return values;
}

Json positions_json(const std::vector<TextPosition>& positions) {
  std::vector<int32_t> tokens, counts, ids;
  std::vector<float> logprobs, best;
  for (const TextPosition& position : positions) {
    tokens.push_back(position.token);
    logprobs.push_back(position.logprob);
    counts.push_back(static_cast<int32_t>(position.best.size()));
    for (const auto& [id, logprob] : position.best) ids.push_back(id), best.push_back(logprob);
  }
  return {{"tokens", pack(tokens)},
          {"logprobs", pack(logprobs)},
          {"counts", pack(counts)},
          {"best_ids", pack(ids)},
          {"best_logprobs", pack(best)}};
}

std::vector<TextPosition> read_positions(const Json& json, const std::string& place) {
  const auto tokens = unpack<int32_t>(json, "tokens", place);
  const auto logprobs = unpack<float>(json, "logprobs", place);
  const auto counts = unpack<int32_t>(json, "counts", place);
  const auto ids = unpack<int32_t>(json, "best_ids", place);
  const auto best = unpack<float>(json, "best_logprobs", place);
  std::vector<TextPosition> positions(tokens.size());
  bool fits = logprobs.size() == tokens.size() && counts.size() == tokens.size() &&
              ids.size() == best.size();
  size_t at = 0;
  for (size_t i = 0; fits && i < positions.size(); ++i) {
    positions[i].token = tokens[i];
    positions[i].logprob = logprobs[i];
    const auto count = static_cast<size_t>(counts[i]);
    fits = counts[i] >= 0 && count <= ids.size() - at;
    for (size_t k = 0; fits && k < count; ++k, ++at) {
      positions[i].best.emplace_back(ids[at], best[at]);
    }
  }
  if (!fits || at != ids.size()) refuse(place, "'positions' has lists whose lengths do not fit");
  return positions;
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string_view kind_name(TaskKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

std::string place_text(const std::string& path, size_t line) {
  return path + ", line " + std::to_string(line);
}

std::string head_line(const RunHead& head) {
  Json tasks = Json::array();
  for (const SuiteTask& task : head.tasks) {
    Json one = {{"name", task.name},       {"domain", task.domain}, {"kind", kind_name(task.kind)},
                {"scorer", task.scorer},   {"chance", task.chance}, {"items", task.num_items},
                {"licence", task.licence}, {"source", task.source}};
    if (task.window > 0) one["window"] = task.window;
    if (!task.left_out.empty()) one["left_out"] = task.left_out;
    tasks.push_back(std::move(one));
  }
  return dump({{"vitrine_eval", kFormatVersion},
               {"suite",
                {{"name", head.suite},
                 {"version", head.version},
                 {"sha256", head.digest},
                 {"tasks", tasks}}},
               {"target", Json::parse(head.target_json)}});
}

RunHead read_head(const Json& json, const std::string& place) {
  const Json& version = need(json, "vitrine_eval", place);
  if (version != kFormatVersion) {
    refuse(place, "'vitrine_eval' is " + found_text(version) + "; expected " +
                      std::to_string(kFormatVersion));
  }
  RunHead head;
  const Json& suite = need(json, "suite", place);
  const Json& target = need(json, "target", place);
  if (!suite.is_object()) refuse(place, "'suite' is no object; expected one");
  if (!target.is_object()) refuse(place, "'target' is no object; expected one");
  head.target_json = target.dump();
  read_field(suite, "name", place, head.suite);
  read_field(suite, "version", place, head.version);
  read_field(suite, "sha256", place, head.digest);
  const Json& tasks = need(suite, "tasks", place);
  if (!tasks.is_array()) refuse(place, "'tasks' is no list; expected one");
  for (const Json& one : tasks) {
    if (!one.is_object()) refuse(place, "'tasks' has a value that is no object");
    SuiteTask task;
    std::string kind;
    read_field(one, "name", place, task.name);
    read_field(one, "domain", place, task.domain);
    read_field(one, "kind", place, kind);
    const auto found = std::ranges::find(kKindNames, kind);
    if (found == kKindNames.end()) {
      refuse(place, "'kind' is " + quote_text(kind) + "; expected answer, choice or text");
    }
    task.kind = static_cast<TaskKind>(found - kKindNames.begin());
    read_field(one, "scorer", place, task.scorer);
    read_field(one, "chance", place, task.chance);
    read_field(one, "items", place, task.num_items);
    read_field(one, "window", place, task.window);
    read_field(one, "licence", place, task.licence);
    read_field(one, "source", place, task.source);
    read_field(one, "left_out", place, task.left_out);
    head.tasks.push_back(std::move(task));
  }
  return head;
}

std::string item_line(const EvaluatedItem& item, double seconds) {
  Json json = {{"task", item.task}, {"id", item.id}};
  const auto add = [&](const char* name, const std::string& text) {
    if (!text.empty()) json[name] = text;
  };
  add("group", item.group);
  if (item.is_critical) json["critical"] = true;
  json["score"] = item.score;
  json["right"] = item.is_right;
  json["parsed"] = item.is_parsed;
  if (item.is_loop) json["loop"] = true;
  add("answer", item.answer);
  add("expected", item.expected);
  add("extracted", item.extracted);
  if (!item.parts.empty()) json["parts"] = item.parts;
  if (item.right_choice >= 0) json["right_choice"] = item.right_choice;
  if (!item.choice_logprobs.empty()) json["choice_logprobs"] = pack(item.choice_logprobs);
  if (item.reference_logprob) {
    json["reference_logprob"] = pack(std::vector{*item.reference_logprob});
    json["reference_tokens"] = item.reference_tokens;
  }
  add("stop", item.stop);
  add("error", item.error);
  add("audit", item.audit);
  json["prompt_tokens"] = item.prompt_tokens;
  add("prompt_sha256", item.prompt_sha256);
  if (!item.tokens.empty()) json["tokens"] = item.tokens;
  if (!item.logprobs.empty()) json["logprobs"] = pack(item.logprobs);
  if (!item.positions.empty()) json["positions"] = positions_json(item.positions);
  json["first_token_seconds"] = item.first_token_seconds;
  json["total_seconds"] = item.total_seconds;
  json["digest"] = item.digest;
  json["at"] = seconds;
  return dump(json);
}

EvaluatedItem read_item(const Json& json, const std::string& place, double& seconds) {
  EvaluatedItem item;
  need(json, "id", place);
  read_field(json, "task", place, item.task);
  read_field(json, "id", place, item.id);
  read_field(json, "group", place, item.group);
  read_field(json, "critical", place, item.is_critical);
  read_field(json, "score", place, item.score);
  read_field(json, "right", place, item.is_right);
  read_field(json, "parsed", place, item.is_parsed);
  read_field(json, "loop", place, item.is_loop);
  read_field(json, "answer", place, item.answer);
  read_field(json, "expected", place, item.expected);
  read_field(json, "extracted", place, item.extracted);
  read_field(json, "parts", place, item.parts);
  read_field(json, "right_choice", place, item.right_choice);
  item.choice_logprobs = unpack<double>(json, "choice_logprobs", place);
  const auto reference = unpack<double>(json, "reference_logprob", place);
  if (!reference.empty()) item.reference_logprob = reference.front();
  read_field(json, "reference_tokens", place, item.reference_tokens);
  read_field(json, "stop", place, item.stop);
  read_field(json, "error", place, item.error);
  read_field(json, "audit", place, item.audit);
  read_field(json, "prompt_tokens", place, item.prompt_tokens);
  read_field(json, "prompt_sha256", place, item.prompt_sha256);
  read_field(json, "tokens", place, item.tokens);
  item.logprobs = unpack<double>(json, "logprobs", place);
  if (const auto found = json.find("positions"); found != json.end()) {
    if (!found->is_object()) refuse(place, "'positions' is no object; expected one");
    item.positions = read_positions(*found, place);
  }
  read_field(json, "first_token_seconds", place, item.first_token_seconds);
  read_field(json, "total_seconds", place, item.total_seconds);
  read_field(json, "digest", place, item.digest);
  read_field(json, "at", place, seconds);
  if (!(item.score >= 0 && item.score <= 1)) {
    refuse(place, "'score' is " + std::to_string(item.score) + "; expected 0 to 1");
  }
  if (const std::string digest = item_digest(item); digest != item.digest) {
    refuse(place, "'digest' is " + quote_text(item.digest) + ", and what the line holds has " +
                      digest + "; expected both the same: the line was changed");
  }
  return item;
}

std::string end_line(size_t items, double seconds) {
  return dump({{"end", {{"items", items}, {"seconds", seconds}}}});
}

}  // namespace vitrine::evaluation

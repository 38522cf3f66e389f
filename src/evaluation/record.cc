// SPDX-License-Identifier: Apache-2.0
#include "evaluation/record.h"

#include <sodium.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "core/json_text.h"
#include "evaluation/digest.h"
#include "evaluation/fields.h"

namespace vitrine::evaluation {

namespace {

[[noreturn]] void refuse(const std::string& place, const std::string& what) {
  throw Error(ErrorKind::kBadFile, place + ": " + what);
}

const Json& need(const Json& json, const char* name, const std::string& place) {
  const auto found = json.find(name);
  if (found == json.end()) refuse(place, std::string("has no '") + name + "'; expected it");
  return *found;
}

const Json& need_object(const Json& json, const char* name, const std::string& place) {
  const Json& found = need(json, name, place);
  if (!found.is_object()) throw_field(place, field_problem(name, &found, "an object"));
  return found;
}

double finite_field(const Json& json, const std::string& place, const char* name) {
  constexpr double kMost = std::numeric_limits<double>::max();
  return number_field(json, place, name, -kMost, kMost, 0);
}

int64_t count_field(const Json& json, const std::string& place, const char* name) {
  return whole_field(json, place, name, 0, INT64_MAX, 0);
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

std::string_view kind_name(TaskKind kind) { return kTaskKinds[static_cast<size_t>(kind)]; }

TaskKind kind_field(const Json& object, const std::string& where) {
  const std::string kind = choice_field(object, where, "kind", kTaskKinds);
  return static_cast<TaskKind>(std::ranges::find(kTaskKinds, kind) - kTaskKinds.begin());
}

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
  const Json& suite = need_object(json, "suite", place);
  head.target_json = need_object(json, "target", place).dump();
  head.suite = text_field(suite, place, "name", "");
  head.version = text_field(suite, place, "version", "");
  head.digest = text_field(suite, place, "sha256", "");
  const Json& tasks = need(suite, "tasks", place);
  if (!tasks.is_array()) throw_field(place, field_problem("tasks", &tasks, "a list"));
  for (const Json& one : tasks) {
    if (!one.is_object()) throw_field(place, field_problem("tasks", &one, "a list of objects"));
    SuiteTask task;
    task.name = text_field(one, place, "name", "");
    task.domain = text_field(one, place, "domain", "");
    task.kind = kind_field(one, place);
    task.scorer = text_field(one, place, "scorer", "");
    task.chance = number_field(one, place, "chance", 0, 1, 0);
    task.num_items = static_cast<size_t>(count_field(one, place, "items"));
    task.window = count_field(one, place, "window");
    task.licence = text_field(one, place, "licence", "");
    task.source = text_field(one, place, "source", "");
    task.left_out = text_field(one, place, "left_out", "");
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
  item.task = text_field(json, place, "task", "");
  item.id = text_field(json, place, "id");
  item.group = text_field(json, place, "group", "");
  item.is_critical = flag_field(json, place, "critical", false);
  item.score = number_field(json, place, "score", 0, 1, 0);
  item.is_right = flag_field(json, place, "right", false);
  item.is_parsed = flag_field(json, place, "parsed", true);
  item.is_loop = flag_field(json, place, "loop", false);
  item.answer = text_field(json, place, "answer", "");
  item.expected = text_field(json, place, "expected", "");
  item.extracted = text_field(json, place, "extracted", "");
  if (const Json* parts = find_field(json, "parts")) {
    if (!parts->is_object()) throw_field(place, field_problem("parts", parts, "an object"));
    for (const auto& [name, value] : parts->items()) {
      item.parts[name] = finite_field(*parts, place, name.c_str());
    }
  }
  item.right_choice =
      static_cast<int32_t>(whole_field(json, place, "right_choice", -1, INT32_MAX, -1));
  item.choice_logprobs = unpack<double>(json, "choice_logprobs", place);
  const auto reference = unpack<double>(json, "reference_logprob", place);
  if (!reference.empty()) item.reference_logprob = reference.front();
  item.reference_tokens = count_field(json, place, "reference_tokens");
  item.stop = text_field(json, place, "stop", "");
  item.error = text_field(json, place, "error", "");
  item.audit = text_field(json, place, "audit", "");
  item.prompt_tokens = count_field(json, place, "prompt_tokens");
  item.prompt_sha256 = text_field(json, place, "prompt_sha256", "");
  for (const int64_t id : wholes_field(json, place, "tokens", INT32_MIN, INT32_MAX, {})) {
    item.tokens.push_back(static_cast<int32_t>(id));
  }
  item.logprobs = unpack<double>(json, "logprobs", place);
  if (find_field(json, "positions") != nullptr) {
    item.positions = read_positions(need_object(json, "positions", place), place);
  }
  item.first_token_seconds = finite_field(json, place, "first_token_seconds");
  item.total_seconds = finite_field(json, place, "total_seconds");
  item.digest = text_field(json, place, "digest", "");
  if (find_field(json, "at") != nullptr) seconds = finite_field(json, place, "at");
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

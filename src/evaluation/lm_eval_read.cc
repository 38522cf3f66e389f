// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "core/json_text.h"
#include "evaluation/digest.h"
#include "evaluation/fields.h"
#include "evaluation/result_file.h"
#include "vitrine/checkpoint.h"
#include "vitrine/lm_eval.h"

namespace vitrine {

namespace {

using evaluation::Json;

[[noreturn]] void refuse(const std::string& place, const std::string& field, const Json* found,
                         const std::string& expected) {
  throw Error(ErrorKind::kBadFile,
              place + ": " + evaluation::field_problem(field.c_str(), found, expected));
}

const Json* find(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

/// A number, or its text: lm-eval logs log-probabilities as texts. Nothing for anything else.
std::optional<double> number_of(const Json& json) {
  if (json.is_boolean()) return json.get<bool>() ? 1 : 0;
  if (json.is_number()) return json.get<double>();
  if (!json.is_string()) return std::nullopt;
  const auto& text = json.get_ref<const std::string&>();
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = problem == std::errc() && end == text.data() + text.size();
  return is_whole ? std::optional(value) : std::nullopt;
}

std::string text_of(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// "samples_TASK_2026-11-29T03-12-24.284643.jsonl": TASK.
std::string task_name(const std::string& file) {
  std::string name = std::filesystem::path(file).stem().string();
  constexpr std::string_view kBegin = "samples_";
  if (name.starts_with(kBegin)) name.erase(0, kBegin.size());
  const size_t date = name.rfind('_');
  const bool is_dated = date != std::string::npos && date > 0 && name.size() - date > 10 &&
                        name.find_first_not_of("0123456789T-.", date + 1) == std::string::npos;
  if (is_dated) name.erase(date);
  if (name.empty()) throw Error(ErrorKind::kInvalidArgument, file + ": its name names no task");
  return name;
}

/// What is told of a run in "results_*.json" beside its samples.
Json facts_beside(const std::string& file) {
  constexpr size_t kMostValues = 4 << 20, kMostKeys = 1 << 16;
  Json facts = Json::object();
  const std::filesystem::path folder = std::filesystem::absolute(file).parent_path();
  std::error_code ignored;
  std::filesystem::path newest;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("results_") && name.ends_with(".json") && entry.path() > newest) {
      newest = entry.path();
    }
  }
  if (newest.empty()) return facts;
  const std::string text = read_text_file(newest.string(), evaluation::kMostResultBytes);
  check_json(text, newest.string(), kMostValues, kMostKeys);
  const Json results = Json::parse(text);
  for (const char* name : {"model_name", "model_source", "lm_eval_version", "chat_template_sha"}) {
    const Json* found = results.is_object() ? find(results, name) : nullptr;
    if (found != nullptr && found->is_primitive()) facts[name] = *found;
  }
  return facts;
}

/// Samples of one file and one filter.
struct ReadTask {
  SuiteTask told;
  std::vector<EvaluatedItem> items;
  std::set<std::string> ids;
  double chances = 0;
};

class SamplesReader {
 public:
  void read_file(const std::string& file) {
    const std::string name = task_name(file);
    if (!names_.insert(name).second) {
      throw Error(ErrorKind::kInvalidArgument,
                  file + ": task '" + name + "' has a file already; expected one of each task");
    }
    const std::string text = read_text_file(file, evaluation::kMostResultBytes);
    hashes_[std::filesystem::path(file).filename().string()] = sha256_of_text(text);
    const std::string whole = text.empty() || text.ends_with('\n') ? text : text + "\n";
    size_t lines = 0;
    evaluation::read_lines(whole, [&](std::string_view line, size_t number) {
      const std::string place = evaluation::place_text(file, number);
      add(name, evaluation::parse_line(line, place), place);
      ++lines;
    });
    if (lines == 0) {
      throw Error(ErrorKind::kBadFile, file + ": has no line; expected samples of lm-eval");
    }
  }

  size_t write(const std::string& path, Json facts) {
    evaluation::RunHead head;
    head.suite = "lm-eval";
    head.version = "samples";
    std::string digests;
    for (const auto& [name, hash] : questions_) digests += name + " " + hash + "\n";
    head.digest = sha256_of_text(digests);
    facts["harness"] = "lm-eval";
    facts["samples"] = hashes_;
    head.target_json = facts.dump();
    for (auto& [name, task] : tasks_) {
      task.told.num_items = task.items.size();
      task.told.chance = task.chances / static_cast<double>(task.items.size());
      head.tasks.push_back(task.told);
    }
    std::string text = evaluation::head_line(head);
    size_t count = 0;
    for (auto& [name, task] : tasks_) {
      for (EvaluatedItem& item : task.items) {
        item.digest = evaluation::item_digest(item);
        text += evaluation::item_line(item, 0);
        ++count;
      }
    }
    write_file_atomically(path, text + evaluation::end_line(count, 0));
    return count;
  }

 private:
  void add(const std::string& file_task, const Json& sample, const std::string& place) {
    const Json* filter = find(sample, "filter");
    const std::string filtered_by = filter != nullptr ? text_of(*filter) : "none";
    const std::string name = filtered_by == "none" ? file_task : file_task + "@" + filtered_by;
    ReadTask& task = tasks_[name];
    EvaluatedItem item;
    item.task = name;
    const Json* id = find(sample, "doc_id");
    const bool is_id = id != nullptr && (id->is_number_integer() || id->is_string());
    if (!is_id) refuse(place, "doc_id", id, "a number");
    item.id = text_of(*id);
    if (!task.ids.insert(item.id).second) {
      throw Error(ErrorKind::kBadFile, place + ": task '" + name + "' has doc_id " + item.id +
                                           " already; expected each once");
    }
    if (const Json* target = find(sample, "target")) item.expected = text_of(*target);
    take_metrics(sample, place, item);
    take_responses(sample, place, task, item);
    std::string question = item.id;
    for (const char* hash : {"doc_hash", "prompt_hash", "target_hash"}) {
      const Json* found = find(sample, hash);
      if (found == nullptr || !found->is_string()) refuse(place, hash, found, "a SHA-256");
      question += " " + found->get<std::string>();
    }
    questions_.emplace_back(name, question);
    task.items.push_back(std::move(item));
  }

  static void take_metrics(const Json& sample, const std::string& place, EvaluatedItem& item) {
    const Json* names = find(sample, "metrics");
    if (names == nullptr || !names->is_array()) refuse(place, "metrics", names, "a list of names");
    std::string primary;
    for (const Json& name : *names) {
      if (!name.is_string()) refuse(place, "metrics", names, "a list of names");
      const auto& metric = name.get_ref<const std::string&>();
      const Json* value = find(sample, metric.c_str());
      if (value == nullptr) refuse(place, metric, value, "a value, as 'metrics' has it");
      const std::optional<double> number = value->is_string() ? std::nullopt : number_of(*value);
      if (!number || !std::isfinite(*number)) continue;
      item.parts[metric] = *number;
      const bool is_share = *number >= 0 && *number <= 1;
      const bool is_better =
          metric == "exact_match" || (metric == "acc" && primary != "exact_match");
      if (is_share && (primary.empty() || is_better)) primary = metric;
    }
    if (primary.empty()) {
      refuse(place, "metrics", names, "one whose value is a number from 0 to 1");
    }
    item.score = item.parts[primary];
    item.is_right = item.score >= 0.5;
  }

  static void take_responses(const Json& sample, const std::string& place, ReadTask& task,
                             EvaluatedItem& item) {
    constexpr const char* kField = "filtered_resps";
    const Json* filtered = find(sample, kField);
    if (filtered == nullptr || !filtered->is_array() || filtered->empty()) {
      refuse(place, kField, filtered, "a list of one or more");
    }
    const bool has_pairs = std::ranges::all_of(
        *filtered, [](const Json& one) { return one.is_array() && one.size() == 2; });
    const bool is_first = task.items.empty();
    const bool is_choice = has_pairs && filtered->size() > 1;
    const TaskKind kind = is_choice ? TaskKind::kChoice : TaskKind::kAnswer;
    if (!is_first && kind != task.told.kind) {
      refuse(place, kField, filtered, "answers of one kind in a file");
    }
    task.told.name = item.task;
    task.told.domain = "logic";
    task.told.kind = kind;
    if (!is_choice) task.told.scorer = "lm-eval";
    task.told.source = "lm-eval";
    item.stop = "stop";
    if (is_choice) return take_choices(sample, *filtered, place, task, item);
    if (has_pairs) {  // one continuation, of which a probability was asked for
      item.reference_logprob = nats(filtered->front().front(), place);
      return;
    }
    const Json& first = filtered->front();
    if (filtered->size() == 1 && number_of(first) && is_rolling(sample)) {
      throw Error(ErrorKind::kUnsupported,
                  place +
                      ": it tells the log-probability of a whole text; expected answers or "
                      "choices (`vitrine perplexity` compares texts)");
    }
    item.extracted = text_of(first);
    item.answer = item.extracted;
    const Json* told = find(sample, "resps");
    if (told == nullptr || !told->is_array() || told->empty()) {
      refuse(place, "resps", told, "a list of one or more");
    }
    const Json& answer = told->front();
    item.answer = text_of(answer.is_array() && !answer.empty() ? answer.front() : answer);
    item.is_parsed = item.extracted != "[invalid]";  // the fallback of lm-eval's filters
  }

  // A text alone was asked: no continuation, and nothing of how to generate.
  static bool is_rolling(const Json& sample) {
    const Json* arguments = find(sample, "arguments");
    const Json* first =
        arguments != nullptr && arguments->is_object() ? find(*arguments, "gen_args_0") : nullptr;
    return first != nullptr && first->is_object() && !first->contains("arg_1");
  }

  static double nats(const Json& json, const std::string& place) {
    const std::optional<double> value = number_of(json);
    if (!value || !std::isfinite(*value) || *value > 0) {
      refuse(place, "filtered_resps", &json, "log-probabilities, 0 or less");
    }
    return *value;
  }

  static void take_choices(const Json& sample, const Json& filtered, const std::string& place,
                           ReadTask& task, EvaluatedItem& item) {
    for (const Json& pair : filtered) item.choice_logprobs.push_back(nats(pair.front(), place));
    task.chances += 1.0 / static_cast<double>(filtered.size());
    const auto best = std::ranges::max_element(item.choice_logprobs);
    const auto chosen = static_cast<size_t>(best - item.choice_logprobs.begin());
    item.answer = choice_text(sample, chosen);
    const Json* target = find(sample, "target");
    const std::optional<double> right = target != nullptr ? number_of(*target) : std::nullopt;
    const bool is_place = right && *right >= 0 && *right < static_cast<double>(filtered.size()) &&
                          *right == std::floor(*right);
    if (!is_place) return;  // a text, or several: 'acc' says what it came to
    item.right_choice = static_cast<int32_t>(*right);
    item.expected = choice_text(sample, static_cast<size_t>(*right));
    double other = -std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < item.choice_logprobs.size(); ++i) {
      if (static_cast<int32_t>(i) != item.right_choice) {
        other = std::max(other, item.choice_logprobs[i]);
      }
    }
    item.parts["margin"] = item.choice_logprobs[static_cast<size_t>(*right)] - other;
  }

  /// The continuation that was scored.
  static std::string choice_text(const Json& sample, size_t number) {
    const Json* arguments = find(sample, "arguments");
    const std::string name = "gen_args_" + std::to_string(number);
    const Json* one =
        arguments != nullptr && arguments->is_object() ? find(*arguments, name.c_str()) : nullptr;
    const Json* text = one != nullptr && one->is_object() ? find(*one, "arg_1") : nullptr;
    return text != nullptr ? text_of(*text) : std::to_string(number);
  }

  std::set<std::string> names_;
  std::map<std::string, ReadTask> tasks_;
  std::vector<std::pair<std::string, std::string>> questions_;
  std::map<std::string, std::string> hashes_;
};

}  // namespace

size_t read_lm_eval_samples(std::span<const std::string> files, const std::string& path) {
  if (files.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "no samples files; expected one or more");
  }
  SamplesReader reader;
  for (const std::string& file : files) {
    std::error_code ignored;
    if (std::filesystem::equivalent(file, path, ignored)) {
      throw Error(ErrorKind::kInvalidArgument,
                  path + ": is an input, too; expected another file for the output");
    }
    reader.read_file(file);
  }
  return reader.write(path, facts_beside(files.front()));
}

}  // namespace vitrine

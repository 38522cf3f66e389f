// SPDX-License-Identifier: Apache-2.0
// Private to the library: the items of a suite, and those who read answers and make items.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/unique_name.h"
#include "vitrine/evaluation.h"

namespace vitrine::evaluation {

using Json = nlohmann::ordered_json;

/// One question. Fields of `data`, as an item's line has them, or as its maker made them:
///   prompt (text) or messages (OpenAI's); a task's `template` has been filled in to make the
///   prompt. plain_prompt: what is asked in place of `prompt` where there is no chat template, or
///   none is used (made of `text_template`). answer_start: what the assistant has said of its
///   answer already (ServeRequest::answer_start); where there is no chat template it follows the
///   prompt. tools (OpenAI's), schema (JSON Schema): held to or only checked as the task says;
///   choices [texts] and answer (index) of kChoice; text of kText, and scored_from, the byte behind
///   which its tokens count; answer (what is right, in the scorer's form), reference (a text whose
///   probability is asked for beside the answer), group, critical, length and depth (of a prompt
///   made by length, in tokens and as a share), note, and whatever else its scorer reads.
struct Item {
  std::string id, group;
  bool is_critical = false;
  Json data;
  size_t line = 0;  // of its file; 0: it was made
};

struct Task {
  SuiteTask told;
  /// Fields of the suite's `[[task]]`, all of these with their defaults: system ("": none), form
  /// ("conversation", or "text": the prompt as it stands), max_new_tokens, stop [texts],
  /// temperature, seed, window (tokens), constrain ("schema"; "tools": calls, if there are any,
  /// are of these; "calls": there is one at least; "none") and normalise (of kChoice:
  /// log-probabilities are divided by "tokens", by "bytes", or "none"); and those of the scorer and
  /// the maker.
  Json options;
  std::vector<Item> items;
};

struct SuiteData {
  std::string name, version, digest, path;
  uint64_t seed = 0;
  std::vector<Task> tasks;
  std::vector<SuiteTask> told;  // [tasks]
};

/// What a scorer makes of an answer.
struct Score {
  double value = 0;  // 0 to 1
  bool is_right = false;
  bool is_parsed = true;  // it could be read
  std::string extracted;  // what was read
  std::map<std::string, double> parts;
};

struct ScoredAnswer {
  const Item& item;
  const Json& options;  // the task's
  const EvaluationTarget::Answer& answer;
  bool runs_code = false;
};

/// Reads answers: one file in src/evaluation/scorers, and one registration.
struct Scorer {
  std::string name;
  Score (*score)(const ScoredAnswer& answer);
  /// Says what is wrong with an item's fields ("'answer' is …; expected a number"); empty: nothing.
  std::string (*check)(const Item& item, const Json& options);
  /// What is right, for people.
  std::string (*expected)(const Item& item);
  std::vector<std::string> options = {};      // fields of a task that it reads
  std::vector<std::string> item_fields = {};  // fields of an item that it reads beside `answer`
};

/// Makes items from a seed: one file in src/evaluation/makers, and one registration.
struct Maker {
  std::string name;
  /// `options`: the task's. Throws Error (kBadFile, naming the field) for options that it cannot
  /// use. An item is the same whatever `count` is; with lengths there are so many of each.
  std::vector<Item> (*make)(const Json& options, uint64_t seed, int64_t count);
  std::vector<std::string> options = {};  // fields of a task that it reads
};

bool register_scorer(const Scorer& scorer);
bool register_maker(const Maker& maker);
/// Null where there is none.
const Scorer* find_scorer(const std::string& name);
const Maker* find_maker(const std::string& name);
std::vector<std::string> scorer_names();
std::vector<std::string> maker_names();

#define VITRINE_REGISTER_SCORER(...)                                       \
  [[maybe_unused]] const bool VITRINE_UNIQUE_NAME(scorer_is_registered_) = \
      ::vitrine::evaluation::register_scorer(__VA_ARGS__)
#define VITRINE_REGISTER_MAKER(...)                                       \
  [[maybe_unused]] const bool VITRINE_UNIQUE_NAME(maker_is_registered_) = \
      ::vitrine::evaluation::register_maker(__VA_ARGS__)

}  // namespace vitrine::evaluation

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

/// One question. Fields of `data`, as an item's line has them:
///   prompt (text) or messages (OpenAI's); tools (OpenAI's), schema (JSON Schema): held to or only
///   checked as the task says; choices [texts] and answer (index) of kChoice; text of kText;
///   answer (what is right, in the scorer's form), reference (a text whose probability is asked for
///   beside the answer), group, critical, and whatever else its scorer reads.
struct Item {
  std::string id, group;
  bool is_critical = false;
  Json data;
};

struct Task {
  SuiteTask told;
  /// Fields of the suite's `[[task]]`: template, system, max_new_tokens, stop, temperature, seed,
  /// window, constrain ("schema", "tools"), and those of the scorer and the maker.
  Json options;
  std::vector<Item> items;
};

struct SuiteData {
  std::string name, version, digest, path;
  uint64_t seed = 0;
  std::vector<Task> tasks;
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
};

/// Makes items from a seed: one file in src/evaluation/makers, and one registration.
struct Maker {
  std::string name;
  /// `options`: the task's. Throws Error (kBadFile) for options that it cannot use.
  std::vector<Item> (*make)(const Json& options, uint64_t seed, int64_t count);
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

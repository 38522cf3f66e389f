// SPDX-License-Identifier: Apache-2.0
// The options of generate and chat that say what an answer must be.
#pragma once

#include <future>
#include <optional>

#include "common.h"
#include "output_path.h"
#include "tool_options.h"
#include "vitrine/constrain.h"

namespace cli {

struct ConstraintOptions {
  std::string json_schema, regex, grammar, tags;
  bool json_object = false, lenient = false, close_objects = false;
  std::vector<std::string> choices;
  std::string validate_with;
  std::string whitespace = "one-line", format = "assert", key_order = "any", on_deadlock = "fail";
  std::string jump_forward = "on", integers = "plain";
  int max_retries = 0;
  ToolOptions tools;

  void add_to(CLI::App& command);
  /// Refuses what contradicts itself. Before compile().
  void check() const;
  bool is_given() const { return json_object || is_text_given() || tools.is_given(); }

  /// The grammar over a model's ids; those that are banned it does without. `calls`: what an answer
  /// is that may call --tools. Throws what its makers throw.
  vitrine::Grammar compile(const vitrine::Tokenizer& tokenizer, int32_t vocab_size,
                           const std::vector<int32_t>& end_ids, const std::vector<int32_t>& banned,
                           const std::optional<vitrine::ToolCallTags>& calls) const;
  /// Makes masks on another thread, while the weights are read and the prompt is computed.
  static std::future<size_t> prepare(const std::optional<vitrine::Grammar>& grammar);
  /// Sets the constraint, which `constraint` keeps, where one is asked for, and what judges its
  /// answers; `tokenizer` must stay.
  void apply(const std::optional<vitrine::Grammar>& grammar, const vitrine::Tokenizer& tokenizer,
             std::unique_ptr<vitrine::Constraint>& constraint,
             vitrine::GenerateOptions& generation) const;
  bool may_jump() const { return is_given() && jump_forward == "on"; }
  /// Makes room for what is forced in one step, with rows of logits where something reads them.
  void reserve_steps(vitrine::EngineOptions& options) const;
  /// An answer may begin anew: it is not shown before it is known to stand.
  bool may_begin_anew() const { return on_deadlock != "fail" || !validate_with.empty(); }
  /// What stands in a log's head (LogHeader::constraint). `hides_text`: of an expression or choices
  /// no more than their SHA-256, since an answer's text may be in them.
  std::vector<std::pair<std::string, std::string>> description(bool hides_text) const;
  /// The files that are read: a schema or a grammar may also be given as text.
  std::vector<NamedPath> files() const;

 private:
  bool is_lark(std::string_view text) const;
  bool is_text_given() const {
    return !json_schema.empty() || !regex.empty() || !grammar.empty() || !tags.empty() ||
           !choices.empty();
  }
};

vitrine::JsonKeyOrder key_order_of(const std::string& name);
vitrine::JsonIntegers integers_of(const std::string& name);
void add_key_order(CLI::App& command, std::string& key_order);
void add_integers(CLI::App& command, std::string& integers);
void add_close_objects(CLI::App& command, bool& close_objects);

/// One line on what a constraint did; empty where there was none.
std::string constraint_note(const vitrine::GenerateResult& result);
/// What --lenient left out, as JSON and as a line each.
nlohmann::ordered_json weakened_json(const vitrine::Grammar& grammar);
std::vector<std::string> weakened_lines(const vitrine::Grammar& grammar);
nlohmann::ordered_json constraint_json(const vitrine::GenerateResult& result);
/// Why an answer is not what its constraint asks for, as one line; empty where it is.
std::string unfinished(const vitrine::GenerateResult& result);
/// Says in one line that the limit of tokens squeezed an answer that is whole; empty where it did
/// not.
std::string squeezed(const vitrine::GenerateResult& result);

}  // namespace cli

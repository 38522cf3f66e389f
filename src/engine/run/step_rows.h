// SPDX-License-Identifier: Apache-2.0
// Works out, once a step, which rows of logits it has, who says what follows each, and what comes
// next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "vitrine/step.h"

namespace vitrine::engine {

/// One row of a step's logits.
struct StepRow {
  enum class Kind : uint8_t {
    kScored,  // what follows is known
    kForced,  // what follows is known, and a constraint left no alternative
    kChosen,  // what follows is chosen
  };
  int32_t input = 0;     // of the step's inputs
  int32_t token = 0;     // of the step's tokens, whose output the row is
  int64_t position = 0;  // of that token; what follows it stands one later
  int32_t next = -1;     // the id that follows; of kChosen the draft of a chain there, or -1
  Kind kind = Kind::kScored;

  bool is_chosen() const { return kind == Kind::kChosen; }
  /// Returns the id whose logit the head records, -1 for the best one's.
  int32_t target() const { return is_chosen() ? -1 : next; }
};

/// The rows of a step and what a record says of its tokens. Not thread-safe.
class StepRows {
 public:
  void reserve(size_t tokens, size_t rows, size_t inputs);
  void clear();
  /// Adds the rows of the next input, whose sequence holds `past` tokens.
  void add(const StepInput& input, int64_t past);

  std::span<const StepRow> all() const { return rows_; }
  size_t size() const { return rows_.size(); }
  const StepRow& operator[](size_t row) const { return rows_[row]; }
  std::span<const StepRow> of_input(size_t input) const {
    return std::span(rows_).subspan(first_[input], first_[input + 1] - first_[input]);
  }
  /// Returns the first row of an input among all. For the input behind the last one it is their
  /// number.
  size_t first_of(size_t input) const { return first_[input]; }
  /// Returns what the record says of each token of the step.
  std::span<const AuditToken> audit_tokens() const { return audit_tokens_; }
  /// Takes a row that nobody looked at out of what was written of the tokens. `tokens` holds a copy
  /// of audit_tokens(), of any alignment.
  void drop_row(size_t row, std::byte* tokens) const;

  /// Returns how many rows an input has, before they are made.
  static size_t count(const StepInput& input) {
    if (input.rows == StepInput::Rows::kNone) return 0;
    if (input.rows == StepInput::Rows::kAll) return input.tokens.size();
    return static_cast<size_t>(input.num_drafts) + 1;
  }

 private:
  std::vector<StepRow> rows_;
  std::vector<size_t> first_ = {0};  // [inputs + 1]
  std::vector<AuditToken> audit_tokens_;
};

/// Follows the choices of a step's rows in their order. An input's rows count until one of them
/// chooses another token than a draft that stands there; in a tree those count that are chosen, one
/// behind another.
class AcceptedRows {
 public:
  /// Returns whether the row counts. What it chooses is told before the next one is asked for.
  bool has(const StepRow& row, const StepInput& input);
  /// Returns which token of the step is the draft that was chosen, -1 where none was.
  int32_t choose(const StepRow& row, const StepInput& input, int32_t token);

 private:
  void begin_tree(const StepRow& row);

  int32_t refused_ = -1;                                // input whose chain has ended
  int32_t tree_ = -1, first_token_ = 0, awaited_ = -1;  // of the tree under way
};

}  // namespace vitrine::engine

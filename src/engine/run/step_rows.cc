// SPDX-License-Identifier: Apache-2.0
#include "engine/run/step_rows.h"

#include <cstring>

namespace vitrine::engine {

namespace {

StepRow::Kind kind_of(const StepInput& input, size_t token) {
  const size_t count = input.tokens.size();
  const bool is_last = token + 1 == count;
  if (token + 1 + static_cast<size_t>(input.num_drafts) >= count &&
      (!is_last || input.next_token < 0)) {
    return StepRow::Kind::kChosen;
  }
  const size_t known = count + (input.next_token < 0 ? 0 : 1);
  return token + 1 + static_cast<size_t>(input.num_forced) >= known ? StepRow::Kind::kForced
                                                                    : StepRow::Kind::kScored;
}

}  // namespace

void StepRows::reserve(size_t tokens, size_t rows, size_t inputs) {
  rows_.reserve(rows);
  first_.reserve(inputs + 1);
  audit_tokens_.reserve(tokens);
}

void StepRows::clear() {
  rows_.clear();
  first_.assign(1, 0);
  audit_tokens_.clear();
}

void StepRows::add(const StepInput& input, int64_t past) {
  const auto index = static_cast<int32_t>(first_.size() - 1);
  const size_t count = input.tokens.size(), first_row = count - StepRows::count(input);
  const size_t first_token = audit_tokens_.size();
  for (size_t i = 0; i < count; ++i) {
    const auto token = static_cast<int32_t>(audit_tokens_.size());
    const bool is_tree = !input.draft_parents.empty();
    const auto known = static_cast<int64_t>(count) - input.num_drafts;
    int64_t position = past + static_cast<int64_t>(i);
    if (is_tree && static_cast<int64_t>(i) >= known) {
      const size_t parent =
          first_token + static_cast<size_t>(input.draft_parents[i - static_cast<size_t>(known)]);
      position = audit_tokens_[parent].position + 1;
    }
    AuditToken record{input.sequence, static_cast<int32_t>(position), input.tokens[i], -1, 0};
    if (i >= first_row) {
      const StepRow::Kind kind = kind_of(input, i);
      record.row = static_cast<int32_t>(rows_.size());
      record.generated = kind != StepRow::Kind::kScored ? 1 : 0;
      const bool is_known = !(is_tree && kind == StepRow::Kind::kChosen);
      const int32_t next = i + 1 < count ? input.tokens[i + 1] : input.next_token;
      rows_.push_back({index, token, position, is_known ? next : -1, kind});
    }
    audit_tokens_.push_back(record);
  }
  first_.push_back(rows_.size());
}

void StepRows::drop_row(size_t row, std::byte* tokens) const {
  const auto index = static_cast<size_t>(rows_[row].token);
  AuditToken token = audit_tokens_[index];
  token.row = -1;
  token.generated = 0;
  std::memcpy(tokens + index * sizeof(token), &token, sizeof(token));
}

int32_t AcceptedRows::choose(const StepRow& row, const StepInput& input, int32_t token) {
  if (!row.is_chosen()) return -1;
  if (input.draft_parents.empty()) {
    const bool is_draft = row.next >= 0 && token == row.next;
    if (row.next >= 0 && !is_draft) refused_ = row.input;
    return is_draft ? row.token + 1 : -1;
  }
  begin_tree(row);
  const auto known = static_cast<int32_t>(input.tokens.size()) - input.num_drafts;
  const int32_t own = row.token - first_token_ + known - 1;  // in the input
  awaited_ = -1;
  for (int32_t draft = 0; draft < input.num_drafts; ++draft) {
    const bool is_behind = input.draft_parents[static_cast<size_t>(draft)] == own;
    if (!is_behind || input.tokens[static_cast<size_t>(known + draft)] != token) continue;
    awaited_ = first_token_ + 1 + draft;
  }
  return awaited_;
}

bool AcceptedRows::has(const StepRow& row, const StepInput& input) {
  if (!row.is_chosen()) return true;
  if (input.draft_parents.empty()) return row.input != refused_;
  begin_tree(row);
  return row.token == awaited_;
}

// The first row of a tree that chooses is that of the last token which is no draft.
void AcceptedRows::begin_tree(const StepRow& row) {
  if (row.input == tree_) return;
  tree_ = row.input;
  first_token_ = awaited_ = row.token;
}

}  // namespace vitrine::engine

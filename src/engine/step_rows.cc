// SPDX-License-Identifier: Apache-2.0
#include "engine/step_rows.h"

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
  for (size_t i = 0; i < count; ++i) {
    const auto token = static_cast<int32_t>(audit_tokens_.size());
    const int64_t position = past + static_cast<int64_t>(i);
    AuditToken record{input.sequence, static_cast<int32_t>(position), input.tokens[i], -1, 0};
    if (i >= first_row) {
      const StepRow::Kind kind = kind_of(input, i);
      record.row = static_cast<int32_t>(rows_.size());
      record.generated = kind != StepRow::Kind::kScored ? 1 : 0;
      rows_.push_back(
          {index, token, position, i + 1 < count ? input.tokens[i + 1] : input.next_token, kind});
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

}  // namespace vitrine::engine

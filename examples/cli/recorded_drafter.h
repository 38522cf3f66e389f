// SPDX-License-Identifier: Apache-2.0
// A drafter that knows the answer: what guesses are worth where they are right for so long.
#pragma once

#include <vector>

#include "vitrine/drafter.h"

namespace cli {

/// Guesses an answer that was recorded: behind each token the next `right_run` of the record and a
/// wrong one in the place of the one after these, or fewer where the record or the room ends.
class RecordedDrafter final : public vitrine::Drafter {
 public:
  /// Ids of `record` are below `vocab_size`, which is above 1.
  RecordedDrafter(std::vector<int32_t> record, int right_run, int64_t vocab_size);

  std::string_view name() const override { return "recorded"; }
  vitrine::DraftTextId start(const vitrine::DraftText& text) override;
  vitrine::DraftTextId fork(vitrine::DraftTextId text) override;
  void commit(vitrine::DraftTextId text, std::span<const int32_t> tokens) override;
  void truncate(vitrine::DraftTextId text, int64_t length) override;
  void propose(std::span<vitrine::DraftProposal> proposals) override;
  void release(vitrine::DraftTextId, bool) override {}

 private:
  struct Text {
    int64_t prompt_tokens = 0, length = 0;
  };
  Text& at(vitrine::DraftTextId text) { return texts_.at(static_cast<size_t>(text) - 1); }

  const std::vector<int32_t> record_;
  const int64_t right_run_, vocab_size_;
  std::vector<Text> texts_;  // by their names less 1
};

}  // namespace cli

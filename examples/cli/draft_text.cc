// SPDX-License-Identifier: Apache-2.0
#include "draft_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace cli {

namespace {

// Returns how far behind the last known token a guess stands, from 1.
int64_t depth_of(const vitrine::DraftedPass& drafts, size_t guess) {
  if (drafts.parents.empty()) return static_cast<int64_t>(guess) + 1;
  int64_t depth = 1;
  for (int32_t at = drafts.parents[guess]; at >= 0; at = drafts.parents[static_cast<size_t>(at)]) {
    ++depth;
  }
  return depth;
}

}  // namespace

std::string drafts_text(const Run& run) {
  struct Counts {
    size_t passes = 0, guesses = 0, right = 0, discarded = 0;
  };
  std::map<std::string, Counts> by_drafter;
  for (const vitrine::DraftedPass& drafts : run.drafts) {
    Counts& counts = by_drafter[drafts.drafter];
    ++counts.passes;
    counts.guesses += drafts.tokens.size();
    counts.right += drafts.accepted.size();
    counts.discarded += static_cast<size_t>(drafts.discarded);
  }
  std::string text;
  for (const auto& [name, counts] : by_drafter) {
    text += fmt::format("guesses   {}: {} of {} right in {} passes, {} positions thrown away\n",
                        plain(name), counts.right, counts.guesses, counts.passes, counts.discarded);
  }
  return text;
}

std::string drafts_text_at(const Run& run, int64_t position) {
  std::string text;
  for (const vitrine::DraftedPass& drafts : run.drafts) {
    const int64_t depth = position - drafts.position + 1;
    if (depth < 1 || depth > static_cast<int64_t>(drafts.tokens.size())) continue;
    std::string guesses;
    for (size_t i = 0; i < drafts.tokens.size(); ++i) {
      if (depth_of(drafts, i) != depth) continue;
      const bool is_right =
          std::ranges::find(drafts.accepted, static_cast<int32_t>(i)) != drafts.accepted.end();
      guesses += fmt::format("{}{} ({})", guesses.empty() ? "" : ", ", run.quoted(drafts.tokens[i]),
                             is_right ? "right" : "wrong");
    }
    if (guesses.empty()) continue;
    text += fmt::format("sequence {}, position {}: guessed by {} at depth {}: {}\n",
                        drafts.sequence, position, plain(drafts.drafter), depth, guesses);
  }
  return text;
}

}  // namespace cli

// SPDX-License-Identifier: Apache-2.0
#include "draft_list.h"

#include <algorithm>
#include <limits>

namespace vitrine::audit {
namespace {

constexpr size_t kMaxDraftTokens = 255;  // of a pass: a full page stays below kMaxPageBytes
constexpr size_t kMaxDrafterBytes = 64;
constexpr uint64_t kMaxGuessId = std::numeric_limits<int32_t>::max();
constexpr uint64_t kMaxGuessPosition = uint64_t{1} << 62;

std::string_view kept_drafter(const DraftedPass& drafts) {
  return std::string_view(drafts.drafter).substr(0, kMaxDrafterBytes);
}

int32_t parent_of(const DraftedPass& drafts, int32_t guess) {
  return drafts.parents.empty() ? guess - 1 : drafts.parents[static_cast<size_t>(guess)];
}

}  // namespace

bool is_plain_draft(const DraftedPass& drafts) {
  const auto count = static_cast<int32_t>(std::min(drafts.tokens.size(), kMaxDraftTokens + 1));
  if (count == 0 || drafts.tokens.size() > kMaxDraftTokens) return false;
  if (drafts.position < 0 || drafts.position > static_cast<int64_t>(kMaxGuessPosition))
    return false;
  if (std::ranges::any_of(drafts.tokens, [](int32_t token) { return token < 0; })) return false;
  if (!drafts.parents.empty() && drafts.parents.size() != drafts.tokens.size()) return false;
  for (int32_t guess = 0; guess < count; ++guess) {
    const int32_t parent = parent_of(drafts, guess);
    if (parent < -1 || parent >= guess) return false;
  }
  int32_t before = -1;
  for (const int32_t guess : drafts.accepted) {
    if (guess <= before || guess >= count || parent_of(drafts, guess) != before) return false;
    before = guess;
  }
  const auto right = static_cast<int32_t>(drafts.accepted.size());
  return drafts.discarded >= count - right && drafts.discarded <= count;
}

void encode_drafts(std::span<const DraftedPass> passes, Bytes& out) {
  ByteWriter writer(out);
  writer.varint(passes.size());
  for (const DraftedPass& drafts : passes) {
    writer.varint(drafts.sequence);
    writer.varint(static_cast<uint64_t>(drafts.position));
    writer.string(kept_drafter(drafts));
    writer.varint(drafts.tokens.size());
    for (const int32_t token : drafts.tokens) writer.varint(static_cast<uint64_t>(token));
    writer.u8(drafts.parents.empty() ? 0 : 1);
    for (const int32_t parent : drafts.parents) {
      writer.varint(static_cast<uint64_t>(int64_t{parent} + 1));
    }
    writer.varint(drafts.accepted.size());
    for (const int32_t guess : drafts.accepted) writer.varint(static_cast<uint64_t>(guess));
    writer.varint(static_cast<uint64_t>(drafts.discarded));
  }
}

std::vector<DraftedPass> parse_drafts(ByteSpan bytes) {
  ByteReader in(bytes);
  const auto number = [&in](uint64_t most, const char* what) {
    return static_cast<int32_t>(in.varint(most, what));
  };
  std::vector<DraftedPass> passes(in.varint(kMaxPageDrafts, "the number of passes with guesses"));
  for (DraftedPass& drafts : passes) {
    drafts.sequence = in.varint();
    drafts.position = static_cast<int64_t>(in.varint(kMaxGuessPosition, "a guess's position"));
    drafts.drafter = in.string(kMaxDrafterBytes, "a drafter's name");
    drafts.tokens.resize(in.varint(kMaxDraftTokens, "a pass's number of guesses"));
    for (int32_t& token : drafts.tokens) token = number(kMaxGuessId, "a guess");
    if (in.u8(1, "whether guesses are a tree") == 1) drafts.parents.resize(drafts.tokens.size());
    for (int32_t& parent : drafts.parents) {
      parent = number(kMaxDraftTokens, "what a guess stands behind") - 1;
    }
    drafts.accepted.resize(in.varint(kMaxDraftTokens, "the number of guesses that were right"));
    for (int32_t& guess : drafts.accepted) guess = number(kMaxDraftTokens, "a right guess's place");
    drafts.discarded = number(kMaxDraftTokens, "the positions that were taken back");
    if (!is_plain_draft(drafts)) {
      throw_damaged("has guesses at position " + std::to_string(drafts.position) +
                    " that contradict themselves");
    }
  }
  in.expect_end("the column of guesses");
  return passes;
}

bool touches(std::span<const DraftedPass> passes,
             const std::function<bool(uint64_t, int64_t)>& hides) {
  return std::ranges::any_of(passes, [&](const DraftedPass& drafts) {
    // None stands further behind than the last one of a chain.
    for (size_t i = 0; i < drafts.tokens.size(); ++i) {
      if (hides(drafts.sequence, drafts.position + static_cast<int64_t>(i))) return true;
    }
    return false;
  });
}

void append_drafts(JsonBuffer& out, const std::vector<DraftedPass>& passes) {
  if (passes.empty()) return;
  const auto numbers = [&out](std::string_view key, const std::vector<int32_t>& values) {
    out.raw(key);
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) out.raw(',');
      out.integer(values[i]);
    }
    out.raw(']');
  };
  out.raw("\"drafts\":[");
  for (size_t i = 0; i < passes.size(); ++i) {
    const DraftedPass& drafts = passes[i];
    out.raw(i > 0 ? ",\n{\"sequence\":" : "\n{\"sequence\":");
    out.integer(drafts.sequence);
    out.raw(",\"position\":");
    out.integer(drafts.position);
    out.raw(",\"drafter\":");
    out.string(kept_drafter(drafts));
    numbers(",\"tokens\":[", drafts.tokens);
    if (!drafts.parents.empty()) numbers(",\"parents\":[", drafts.parents);
    numbers(",\"accepted\":[", drafts.accepted);
    out.raw(",\"discarded\":");
    out.integer(drafts.discarded);
    out.raw('}');
  }
  out.raw("],\n");
}

}  // namespace vitrine::audit

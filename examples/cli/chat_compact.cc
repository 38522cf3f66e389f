// SPDX-License-Identifier: Apache-2.0
// A conversation forgets its oldest turns, or tokens in the middle.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "audit_run.h"
#include "chat_conversation.h"
#include "common.h"

namespace cli {

namespace {

constexpr size_t kMostCharactersOfTurn = 40;

/// A message's beginning in quotes, in one line.
std::string beginning_of(const std::string& text) {
  std::string shown = plain(text);
  std::ranges::replace(shown, '\n', ' ');
  if (shown.size() <= kMostCharactersOfTurn) return "'" + shown + "'";
  size_t end = kMostCharactersOfTurn;
  while (end > 0 && (static_cast<unsigned char>(shown[end]) & 0xC0U) == 0x80U) --end;
  return "'" + shown.substr(0, end) + "…'";
}

/// Where each turn begins.
std::vector<size_t> turns_of(const std::vector<vitrine::ChatMessage>& messages) {
  std::vector<size_t> turns;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == "user") turns.push_back(i);
  }
  return turns;
}

}  // namespace

/// The tokens of the system message, where it stands first.
int64_t Conversation::system_tokens(const Messages& messages) const {
  const Messages first(messages.begin(), std::ranges::find_if(messages, [](const auto& one) {
                         return one.role != "system";
                       }));
  if (first.empty()) return 0;
  try {
    return std::ssize(tokenizer_.encode(
        arguments_.chat_prompt.render(chat_, first, /*opens_answer=*/false), false));
  } catch (const vitrine::Error& error) {  // a template that wants a message behind it
    if (!error.is_user_error()) throw;
    return 0;
  }
}

void Conversation::shift_prompt(std::vector<int32_t>& prompt, const Messages& messages) {
  const int64_t context = engine_->options().max_context;
  const int64_t kept = arguments_.length.kept(system_tokens(messages), context);
  generation_.context_keep = kept;
  const int64_t before = std::ssize(prompt);
  while (std::ssize(prompt) > context) {
    const auto first = prompt.begin() + kept;
    prompt.erase(first, first + (std::ssize(prompt) - kept) / 2);
  }
  if (std::ssize(prompt) == before) return;
  output_.remark(fmt::format(
      "the context of {} tokens is full: of the conversation's {} the first {} are kept and {} "
      "behind them dropped (--context-shift); /compact drops whole turns",
      context, before, kept, before - std::ssize(prompt)));
}

std::string Conversation::way_out() const {
  return turns_of(messages_).size() < 2 ? "forget it with /reset"
                                        : "forget its oldest turns with /compact, all with /reset";
}

void Conversation::compact() {
  const std::vector<size_t> turns = turns_of(messages_);
  if (turns.size() < 2) {
    return refuse(
        "/compact: there is no turn before the last one that could be forgotten; expected several, "
        "or /reset");
  }
  const int64_t room = engine_->options().max_context / 2;
  Messages left;
  std::vector<int32_t> tokens;
  size_t dropped = 0;
  std::vector<std::string> names;
  do {
    names.push_back(beginning_of(messages_[turns[dropped]].content));
    ++dropped;
    const auto begin = messages_.begin();
    left.assign(begin, begin + static_cast<std::ptrdiff_t>(turns[0]));
    left.insert(left.end(), begin + static_cast<std::ptrdiff_t>(turns[dropped]), messages_.end());
    tokens = tokenizer_.encode(arguments_.chat_prompt.render(chat_, left, /*opens_answer=*/false),
                               false);
  } while (std::ssize(tokens) > room && dropped + 1 < turns.size());
  messages_ = std::move(left);
  keep_common(tokens);
  has_answer_ = false;
  output_.note(fmt::format("{} of {} turns are forgotten: {}; {} tokens are left", dropped,
                           turns.size(), fmt::join(names, ", "), tokens.size()));
}

}  // namespace cli

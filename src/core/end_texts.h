// SPDX-License-Identifier: Apache-2.0
// The texts of tokens that end a turn, by which published models without keys for them are known.
#pragma once

#include <algorithm>
#include <set>
#include <string_view>

namespace vitrine::core {

/// llama.cpp's list (llama-vocab.cpp, special_eog_ids), and two of Hugging Face templates.
inline constexpr std::string_view kEndTexts[] = {"<|im_end|>",
                                                 "<|eot_id|>",
                                                 "<|eom_id|>",
                                                 "<|end|>",
                                                 "<|endoftext|>",
                                                 "<|end_of_text|>",
                                                 "<end_of_turn>",
                                                 "<|return|>",
                                                 "<|call|>",
                                                 "<|flush|>",
                                                 "<|calls|>",
                                                 "</s>",
                                                 "<eos>",
                                                 "<EOT>",
                                                 "_<EOT>",
                                                 "[EOT]",
                                                 "[EOS]",
                                                 "<end_of_utterance>",
                                                 "<turn|>",
                                                 "<|tool_response>",
                                                 "<\uff5cend\u2581of\u2581sentence\uff5c>",
                                                 "[e~[",
                                                 "<|eot|>",
                                                 "<|END_OF_TURN_TOKEN|>"};
/// How they end; nearly all tokens of a vocabulary end otherwise.
inline constexpr std::string_view kEndTextEnds = ">][";
static_assert(std::ranges::all_of(kEndTexts, [](std::string_view text) {
  return kEndTextEnds.find(text.back()) != text.npos;
}));

inline bool is_end_text(std::string_view text) {
  return !text.empty() && kEndTextEnds.find(text.back()) != text.npos &&
         std::ranges::find(kEndTexts, text) != std::end(kEndTexts);
}

/// The ids of those that a vocabulary has; find(text) is an id, or -1. In the harmony format, which
/// has "<|return|>" and "<|call|>", "<|end|>" ends a part of a turn only.
template <typename Id, typename Find>
std::set<Id> find_end_ids(const Find& find) {
  const bool is_harmony = find("<|return|>") >= 0 && find("<|call|>") >= 0;
  std::set<Id> ids;
  for (const std::string_view text : kEndTexts) {
    if (!is_harmony || text != "<|end|>") ids.insert(find(text));
  }
  ids.erase(-1);
  return ids;
}

}  // namespace vitrine::core

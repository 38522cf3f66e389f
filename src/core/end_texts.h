// The texts of tokens that end a turn, by which published models without keys for them are known.
#pragma once

#include <algorithm>
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
/// In the harmony format, which has the other two, it ends a part of a turn only.
inline constexpr std::string_view kEndOfPart = "<|end|>", kHarmonyReturn = "<|return|>",
                                  kHarmonyCall = "<|call|>";

inline bool is_end_text(std::string_view text) {
  return std::ranges::find(kEndTexts, text) != std::end(kEndTexts);
}

}  // namespace vitrine::core

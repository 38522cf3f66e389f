// SPDX-License-Identifier: Apache-2.0
// Private to the room: what a GGUF file's `tokenizer.ggml.pre` stands for, and other patterns.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace vitrine::checkpoint {

/// How the text is cut before byte-level BPE, and what else comes with the name.
struct GgufPreTokenizer {  // NOLINT(bugprone-exception-escape): its Json throws none
  std::string_view name;
  bool normalizes_nfc = false;
  bool ignores_merges = false;  ///< a word that is a token is that token
  bool adds_bos = false;        ///< what an absent `tokenizer.ggml.add_bos_token` means
  /// Returns the field `pre_tokenizer` of tokenizer.json.
  nlohmann::json pre_tokenizer;
};

/// Finds one by its name; nothing where it is unknown.
bool find_gguf_pre_tokenizer(std::string_view name, GgufPreTokenizer& found);
/// Returns the field `pre_tokenizer` of a tokenizer.json that cuts words by one pattern.
nlohmann::json pre_tokenizer_of(std::string_view pattern);
/// Returns the first name of one that is it; empty: none is. The most widely known come first.
std::string_view name_of_gguf_pre_tokenizer(
    const std::function<bool(const GgufPreTokenizer&)>& is_it);
/// Returns all names, for messages.
std::string gguf_pre_tokenizer_names();

}  // namespace vitrine::checkpoint

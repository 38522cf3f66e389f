// SPDX-License-Identifier: Apache-2.0
// A small byte-level tokenizer.json for the tests, to be changed before it is loaded.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace vitrine::test {

/// The byte-level alphabet by byte: ids 0 to 255 of small_tokenizer().
inline std::vector<std::string> byte_alphabet() {
  std::vector<std::string> alphabet;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
    const int c = printable ? byte : next++;
    std::string text;
    if (c < 0x80) {
      text = static_cast<char>(c);
    } else {
      text = {static_cast<char>(0xc0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3f))};
    }
    alphabet.push_back(text);
  }
  return alphabet;
}

/// Every byte is the id of its own value; then "he" 256, "ll" 257, "hell" 258, "hello" 259,
/// "Ġw" 260; the special token "<|end|>" 261 and the added token "MASK" 262.
inline nlohmann::json small_tokenizer() {
  nlohmann::json vocab = nlohmann::json::object();
  int id = 0;
  for (const std::string& token : byte_alphabet()) vocab[token] = id++;
  for (const char* token : {"he", "ll", "hell", "hello", "\u0120w"}) vocab[token] = id++;
  const auto added = [](int token_id, const char* content, bool special) {
    return nlohmann::json{{"id", token_id},    {"content", content}, {"single_word", false},
                          {"lstrip", false},   {"rstrip", false},    {"normalized", false},
                          {"special", special}};
  };
  const nlohmann::json byte_level = {{"type", "ByteLevel"},
                                     {"add_prefix_space", false},
                                     {"trim_offsets", true},
                                     {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", {added(261, "<|end|>", true), added(262, "MASK", false)}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges",
             nlohmann::json::array({nlohmann::json::array({"h", "e"}), "l l",
                                    nlohmann::json::array({"he", "ll"}), "hell o", "\u0120 w"})}}}};
}

}  // namespace vitrine::test

// SPDX-License-Identifier: Apache-2.0
// Private to the library: how scorers read an answer's text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evaluation/fields.h"
#include "evaluation/item.h"

namespace vitrine::evaluation {

/// What a conversation's answer says to the user, or the text of another answer.
std::string answer_text(const ScoredAnswer& answer);

/// Without ASCII white space at both ends.
std::string_view trim(std::string_view text);
/// Each character in lower case (Unicode's simple mapping).
std::string fold_case(std::string_view text);
/// What follows the last `marker`, in any case of ASCII letters; nothing where there is none.
std::optional<std::string_view> after_marker(std::string_view text, std::string_view marker);
/// The first line that is not empty.
std::string_view first_line(std::string_view text);
/// The words: runs of letters, digits and what is not ASCII, in lower case.
std::vector<std::string> words_of(std::string_view text);

/// What stands between the first pair of ``` lines; nothing where there is none. A block that is
/// never closed ends with the text.
std::optional<std::string_view> fenced_block(std::string_view text);

/// JSON of an answer.
struct FoundJson {
  Json value;
  std::string text;
  bool is_bare = false;  // the answer is nothing else
};
/// Reads the whole answer as JSON, else its first ``` block, else its first object or list that is
/// one; nothing where there is none within bounds.
std::optional<FoundJson> find_json(std::string_view text);

/// All JSON objects and lists that stand in the text, in their order, but for those within others.
std::vector<Json> find_all_json(std::string_view text);

/// Whether `text` is JSON that this library is ready to hold: not too deep, no key twice.
std::optional<Json> parse_answer_json(std::string_view text);

/// A text cut after some bytes, between characters, for reports.
std::string short_text(std::string_view text);

}  // namespace vitrine::evaluation

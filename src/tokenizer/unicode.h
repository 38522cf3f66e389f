// SPDX-License-Identifier: Apache-2.0
// The few Unicode operations that tokenizers need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/utf8.h"

namespace vitrine::tokenizer {

/// Unicode's White_Space property (complete and stable).
bool is_whitespace(char32_t code_point);

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

/// Normalises valid UTF-8; code points newer than the reference's data pass through unchanged.
std::string normalize_unicode(std::string_view text, NormalizationForm form);

/// Lower case per code point, without context (no final sigma), as Rust's `char::to_lowercase`.
std::string lowercase_unicode(std::string_view text);

/// Class items (PCRE2 syntax, to be put between brackets) that must be added to PCRE2's own
/// property so that it equals the reference's; empty where nothing is missing.
std::string_view property_additions(std::string_view property);
std::string_view word_additions();         ///< Oniguruma's [\w] beyond \p{L}\p{M}\p{Nl}\p{Nd}\p{Pc}
std::string_view lone_word_additions();    ///< and what a \w outside brackets has more
std::string_view rust_word_additions();    ///< the same for \w of Rust's regex crate
std::string_view numeric_additions();      ///< char::is_numeric beyond \p{N}
std::string_view punctuation_additions();  ///< pre-tokenizer Punctuation beyond \p{P}$+<=>^`|~
std::string_view punctuation_removals();   ///< and what it lacks of them

/// The byte-level alphabet: the printable character that stands for a byte (below U+0180).
char32_t byte_to_char(uint8_t byte);
/// The byte that a character of the byte-level alphabet stands for, -1 for any other character.
int char_to_byte(char32_t code_point);

}  // namespace vitrine::tokenizer

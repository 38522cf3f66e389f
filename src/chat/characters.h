// SPDX-License-Identifier: Apache-2.0
// Private to the room: what Python knows of characters, and the cases of text.
#pragma once

#include <string>
#include <string_view>

namespace vitrine::chat {

/// What str.isspace() and `\s` match.
bool is_space(char32_t code_point);
/// Letter, digit or underscore, as `\w`; `is_word_start`: no digit.
bool is_word(char32_t code_point);
bool is_word_start(char32_t code_point);
/// What str.isidentifier() wants of the first character and of the others.
bool is_identifier_start(char32_t code_point);
bool is_identifier_part(char32_t code_point);
/// What repr() shows as it is.
bool is_printable(char32_t code_point);
bool is_alphabetic(char32_t code_point);
/// True for a decimal digit of any script, which int() reads.
bool is_decimal(char32_t code_point);
int decimal_value(char32_t decimal);
bool is_digit(char32_t code_point);
bool is_numeric(char32_t code_point);
bool is_upper(char32_t code_point);
bool is_lower(char32_t code_point);
bool is_title(char32_t code_point);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
/// The first character in title case, the others in lower case.
std::string capitalize(std::string_view text);
/// str.title(): the first letter of each run of letters.
std::string to_title(std::string_view text);
std::string swap_case(std::string_view text);

}  // namespace vitrine::chat

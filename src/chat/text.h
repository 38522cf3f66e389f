// SPDX-License-Identifier: Apache-2.0
// Private to the room: Python's view of text. A string is UTF-8 here and a sequence of code points
// in a template.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vitrine::chat {

/// Code points of valid UTF-8.
size_t count_code_points(std::string_view text);
/// The byte offset of a code point; the size where `index` is their number or more.
size_t byte_offset(std::string_view text, size_t index);
std::u32string decode_utf8(std::string_view text);
std::string encode_utf8(std::u32string_view text);
/// Ill-formed bytes become U+FFFD.
std::string valid_utf8(std::string_view text);

/// Removes code points of `characters` (null: whitespace) at the ends that are asked for.
std::string_view strip(std::string_view text, bool left, bool right,
                       const std::string_view* characters = nullptr);
/// str.splitlines(): every line break that Python knows.
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);
/// str.split() and str.rsplit(); an empty `separator` stands for runs of whitespace, `max_splits`
/// below 0 for no limit.
std::vector<std::string_view> split(std::string_view text, std::string_view separator,
                                    int64_t max_splits, bool from_right);
/// str.replace(); `max_count` below 0 for no limit. The result has at most `max_bytes` bytes or is
/// refused by `too_long`.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        int64_t max_count);
/// With entities for &, <, > and both quotes, as MarkupSafe escapes.
std::string escape_markup(std::string_view text);
/// Bytes of what replace_all would return.
size_t replaced_size(std::string_view text, std::string_view from, std::string_view to,
                     int64_t max_count);

}  // namespace vitrine::chat

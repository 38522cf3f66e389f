// SPDX-License-Identifier: Apache-2.0
// What a constraint's state is called where people read it.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "regex_pool.h"

namespace vitrine::constrain {

/// Bytes as "'a'-'z' '\"' space 0x80-0xBF".
std::string byte_set_text(const ByteSet& bytes);

/// Printable ASCII as it is, all other bytes as \xNN, up to `limit` bytes; what is cut ends with
/// "…".
std::string printable(std::string_view text, size_t limit);
/// Valid UTF-8, of which all but control characters stay, cut in the same way.
std::string printable_utf8(std::string_view text, size_t limit);

/// A reading, cut to what a log keeps of it.
std::string bounded(std::string reading);

/// A regular language in the spelling of regular expressions, and further: x&y is both, !(…) a
/// complement, of which no more is told, and <number>, <format> what is no expression. It is cut
/// behind about `limit` characters.
std::string regex_text(const RegexPool& pool, NodeId id, size_t limit);

/// The JSON pointer of the place at which the beginning of a JSON text ends. A key of which
/// `is_named` says false is the answer's own text and stands as *.
std::string json_place(std::string_view text,
                       const std::function<bool(std::string_view)>& is_named);

}  // namespace vitrine::constrain

// SPDX-License-Identifier: Apache-2.0
#include "unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <new>

#include "vitrine/core.h"

namespace vitrine::tokenizer {
namespace {

struct PropertyAddition {
  const char* property;
  const char* items;
};
struct CaseAddition {
  char32_t first, last;
  int32_t offset;  // lower case = code point + offset
};
struct CodePointRange {
  char32_t first, last;
};

#include "unicode_tables.inc"

bool is_inert(char32_t code_point) {
  if (code_point < kInertRanges[0].first) return false;
  const auto* range = std::upper_bound(
      std::begin(kInertRanges), std::end(kInertRanges), code_point,
      [](char32_t value, const CodePointRange& candidate) { return value < candidate.first; });
  return code_point <= (range - 1)->last;
}

void append_normalized(std::string_view text, utf8proc_option_t options, std::string& out) {
  if (text.empty()) return;
  utf8proc_uint8_t* buffer = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &buffer, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(buffer, &std::free);
  if (length == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (length < 0) {
    throw Error(ErrorKind::kInvalidArgument, std::string("text cannot be normalised: ") +
                                                 utf8proc_errmsg(length) + "; shorten it");
  }
  out.append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(length));
}

struct ByteAlphabet {
  std::array<char32_t, 256> to_char{};
  std::array<int16_t, 0x180> to_byte{};

  constexpr ByteAlphabet() {
    to_byte.fill(-1);
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
      to_char[byte] = printable ? static_cast<char32_t>(byte) : next++;
      to_byte[to_char[byte]] = static_cast<int16_t>(byte);
    }
  }
};
constexpr ByteAlphabet kByteAlphabet;

}  // namespace

bool is_whitespace(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

std::string normalize_unicode(std::string_view text, NormalizationForm form) {
  int options = UTF8PROC_STABLE;
  const bool composes = form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc;
  const bool is_compatible = form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
  options |= composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (is_compatible) options |= UTF8PROC_COMPAT;

  std::string out;
  out.reserve(text.size());
  // An inert code point neither combines nor reorders, so the text on its two sides is independent.
  size_t segment = 0, pos = 0;
  while (pos < text.size()) {
    const size_t start = pos;
    if (!is_inert(next_code_point(text, pos))) continue;
    append_normalized(text.substr(segment, start - segment), utf8proc_option_t(options), out);
    out.append(text, start, pos - start);
    segment = pos;
  }
  append_normalized(text.substr(segment), utf8proc_option_t(options), out);
  return out;
}

std::string lowercase_unicode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = next_code_point(text, pos);
    if (c == 0x130) {  // the one code point whose lower case is two: i and a dot above
      out += "i\xcc\x87";
      continue;
    }
    char32_t lower = static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
    for (const CaseAddition& addition : kLowercaseAdditions) {
      if (c >= addition.first && c <= addition.last) {
        lower = static_cast<char32_t>(static_cast<int32_t>(c) + addition.offset);
      }
    }
    append_utf8(lower, out);
  }
  return out;
}

std::string_view property_additions(std::string_view property) {
  for (const PropertyAddition& addition : kPropertyAdditions) {
    if (property == addition.property) return addition.items;
  }
  return {};
}
std::string_view lone_word_additions() { return kLoneWordAdditions; }
std::string_view word_additions() { return kWordAdditions; }
std::string_view rust_word_additions() { return kRustWordAdditions; }
std::string_view numeric_additions() { return kNumericAdditions; }
std::string_view punctuation_additions() { return kPunctuationAdditions; }
std::string_view punctuation_removals() { return kPunctuationRemovals; }

char32_t byte_to_char(uint8_t byte) { return kByteAlphabet.to_char[byte]; }

int char_to_byte(char32_t code_point) {
  return code_point < kByteAlphabet.to_byte.size() ? kByteAlphabet.to_byte[code_point] : -1;
}

}  // namespace vitrine::tokenizer

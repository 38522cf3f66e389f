// SPDX-License-Identifier: Apache-2.0
#include "char_ranges.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "core/utf8.h"

namespace vitrine::constrain {

CharSet normalize(CharSet set) {
  std::sort(set.begin(), set.end(),
            [](const CodeRange& x, const CodeRange& y) { return x.low < y.low; });
  CharSet out;
  for (CodeRange range : set) {
    if (range.low > range.high) continue;
    if (!out.empty() && range.low <= out.back().high + 1) {
      out.back().high = std::max(out.back().high, range.high);
    } else {
      out.push_back(range);
    }
  }
  // Surrogates are no characters.
  return intersect(out, {{0, 0xD7FF}, {0xE000, kMaxCodePoint}});
}

CharSet complement(const CharSet& set) {
  CharSet out;
  uint32_t next = 0;
  for (CodeRange range : set) {
    if (range.low > next) out.push_back({next, range.low - 1});
    next = range.high + 1;
  }
  if (next <= kMaxCodePoint) out.push_back({next, kMaxCodePoint});
  return intersect(out, {{0, 0xD7FF}, {0xE000, kMaxCodePoint}});
}

CharSet intersect(const CharSet& x, const CharSet& y) {
  CharSet out;
  for (size_t i = 0, j = 0; i < x.size() && j < y.size();) {
    const uint32_t low = std::max(x[i].low, y[j].low), high = std::min(x[i].high, y[j].high);
    if (low <= high) out.push_back({low, high});
    ++(x[i].high < y[j].high ? i : j);
  }
  return out;
}

CharSet fold_ascii_case(CharSet set) {
  const CharSet upper = intersect(set, {{'A', 'Z'}}), lower = intersect(set, {{'a', 'z'}});
  for (CodeRange range : upper) set.push_back({range.low + 32, range.high + 32});
  for (CodeRange range : lower) set.push_back({range.low - 32, range.high - 32});
  return normalize(std::move(set));
}

CharSet digit_chars() { return {{'0', '9'}}; }
CharSet word_chars() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
CharSet space_chars() {
  return {{9, 13},          {32, 32},         {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
          {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
}
CharSet dot_chars() { return complement({{10, 10}, {13, 13}, {0x2028, 0x2029}}); }

namespace {

struct Category {
  std::string_view name, long_name;
  std::initializer_list<utf8proc_category_t> members;
};

const Category kCategories[] = {
    {"Lu", "Uppercase_Letter", {UTF8PROC_CATEGORY_LU}},
    {"Ll", "Lowercase_Letter", {UTF8PROC_CATEGORY_LL}},
    {"Lt", "Titlecase_Letter", {UTF8PROC_CATEGORY_LT}},
    {"Lm", "Modifier_Letter", {UTF8PROC_CATEGORY_LM}},
    {"Lo", "Other_Letter", {UTF8PROC_CATEGORY_LO}},
    {"L",
     "Letter",
     {UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LT, UTF8PROC_CATEGORY_LM,
      UTF8PROC_CATEGORY_LO}},
    {"Mn", "Nonspacing_Mark", {UTF8PROC_CATEGORY_MN}},
    {"Mc", "Spacing_Mark", {UTF8PROC_CATEGORY_MC}},
    {"Me", "Enclosing_Mark", {UTF8PROC_CATEGORY_ME}},
    {"M", "Mark", {UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_MC, UTF8PROC_CATEGORY_ME}},
    {"Nd", "Decimal_Number", {UTF8PROC_CATEGORY_ND}},
    {"digit", "Digit", {UTF8PROC_CATEGORY_ND}},
    {"Nl", "Letter_Number", {UTF8PROC_CATEGORY_NL}},
    {"No", "Other_Number", {UTF8PROC_CATEGORY_NO}},
    {"N", "Number", {UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NL, UTF8PROC_CATEGORY_NO}},
    {"P",
     "Punctuation",
     {UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PD, UTF8PROC_CATEGORY_PS, UTF8PROC_CATEGORY_PE,
      UTF8PROC_CATEGORY_PI, UTF8PROC_CATEGORY_PF, UTF8PROC_CATEGORY_PO}},
    {"S",
     "Symbol",
     {UTF8PROC_CATEGORY_SM, UTF8PROC_CATEGORY_SC, UTF8PROC_CATEGORY_SK, UTF8PROC_CATEGORY_SO}},
    {"LC", "Cased_Letter", {UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LT}},
    {"Pc", "Connector_Punctuation", {UTF8PROC_CATEGORY_PC}},
    {"Pd", "Dash_Punctuation", {UTF8PROC_CATEGORY_PD}},
    {"Ps", "Open_Punctuation", {UTF8PROC_CATEGORY_PS}},
    {"Pe", "Close_Punctuation", {UTF8PROC_CATEGORY_PE}},
    {"Pi", "Initial_Punctuation", {UTF8PROC_CATEGORY_PI}},
    {"Pf", "Final_Punctuation", {UTF8PROC_CATEGORY_PF}},
    {"Po", "Other_Punctuation", {UTF8PROC_CATEGORY_PO}},
    {"Sm", "Math_Symbol", {UTF8PROC_CATEGORY_SM}},
    {"Sc", "Currency_Symbol", {UTF8PROC_CATEGORY_SC}},
    {"Sk", "Modifier_Symbol", {UTF8PROC_CATEGORY_SK}},
    {"So", "Other_Symbol", {UTF8PROC_CATEGORY_SO}},
    {"Zs", "Space_Separator", {UTF8PROC_CATEGORY_ZS}},
    {"Zl", "Line_Separator", {UTF8PROC_CATEGORY_ZL}},
    {"Zp", "Paragraph_Separator", {UTF8PROC_CATEGORY_ZP}},
    {"Cf", "Format", {UTF8PROC_CATEGORY_CF}},
    {"Co", "Private_Use", {UTF8PROC_CATEGORY_CO}},
    {"Cn", "Unassigned", {UTF8PROC_CATEGORY_CN}},
    {"C",
     "Other",
     {UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CF, UTF8PROC_CATEGORY_CO, UTF8PROC_CATEGORY_CN}},
    {"punct",
     "punct",
     {UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PD, UTF8PROC_CATEGORY_PS, UTF8PROC_CATEGORY_PE,
      UTF8PROC_CATEGORY_PI, UTF8PROC_CATEGORY_PF, UTF8PROC_CATEGORY_PO}},
    {"Z", "Separator", {UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZL, UTF8PROC_CATEGORY_ZP}},
    {"Cc", "Control", {UTF8PROC_CATEGORY_CC}},
    {"cntrl", "Cc", {UTF8PROC_CATEGORY_CC}},
};

/// Every code point's category, as ranges; made once.
const std::array<CharSet, 32>& category_ranges() {
  static const std::array<CharSet, 32> table = [] {
    std::array<CharSet, 32> out;
    for (uint32_t code = 0; code <= kMaxCodePoint; ++code) {
      auto& set = out[static_cast<size_t>(utf8proc_category(static_cast<utf8proc_int32_t>(code)))];
      if (!set.empty() && set.back().high + 1 == code) {
        set.back().high = code;
      } else {
        set.push_back({code, code});
      }
    }
    return out;
  }();
  return table;
}

}  // namespace

CharSet property_chars(std::string_view name) {
  if (name == "Any") return complement({});
  if (name == "ASCII") return {{0, 127}};
  if (name == "Assigned") return complement(property_chars("Cn"));
  for (std::string_view prefix : {"gc=", "General_Category="}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  for (const Category& category : kCategories) {
    if (name != category.name && name != category.long_name) continue;
    CharSet out;
    for (utf8proc_category_t member : category.members) {
      const CharSet& set = category_ranges()[static_cast<size_t>(member)];
      out.insert(out.end(), set.begin(), set.end());
    }
    return normalize(std::move(out));
  }
  return unicode_property(name);
}

uint32_t decode_utf8(std::string_view text, size_t& at) {
  if (at >= text.size()) return kNoCodePoint;
  const Utf8Character character = read_utf8(text, at);
  if (!character.is_valid) return kNoCodePoint;
  at += character.size;
  return character.code_point;
}

/// UTF-8's byte sequences of the range between two code points of one length.
static NodeId utf8_range(RegexPool& pool, uint32_t low, uint32_t high, int length, int left) {
  static constexpr int kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  const int shift = 6 * (left - 1);
  const int mark = left == length ? kLead[length] : 0x80;
  const int mask = left == length ? 0xFF : 0x3F;
  const auto byte_of = [&](uint32_t code) {
    return mark | (static_cast<int>(code >> shift) & mask);
  };
  if (left == 1) return pool.bytes(ByteSet::range(byte_of(low), byte_of(high)));
  const uint32_t block = (1U << shift) - 1;
  const uint32_t top_low = low >> shift, top_high = high >> shift;
  const auto piece = [&](uint32_t from, uint32_t to) {
    return pool.cat(pool.bytes(ByteSet::range(byte_of(from), byte_of(to))),
                    utf8_range(pool, from, to, length, left - 1));
  };
  if (top_low == top_high) return piece(low, high);
  std::vector<NodeId> parts;
  uint32_t first = top_low, last = top_high;
  if ((low & block) != 0) {
    parts.push_back(piece(low, low | block));
    ++first;
  }
  if ((high & block) != block) {
    parts.push_back(piece(high & ~block, high));
    --last;
  }
  if (first <= last && last != 0xFFFFFFFF) {
    const uint32_t from = first << shift, to = last << shift | block;
    // Whole blocks: any continuation bytes.
    parts.push_back(pool.cat(pool.bytes(ByteSet::range(byte_of(from), byte_of(to))),
                             utf8_range(pool, 0, block, length, left - 1)));
  }
  return pool.any_of(std::move(parts));
}

NodeId RegexPool::characters(std::span<const CodeRange> ranges) {
  static constexpr uint32_t kLimits[] = {0, 0x80, 0x800, 0x10000, kMaxCodePoint + 1};
  std::vector<NodeId> parts;
  ByteSet ascii;
  for (CodeRange range : ranges) {
    for (int length = 1; length <= 4; ++length) {
      const uint32_t low = std::max(range.low, kLimits[length - 1]);
      const uint32_t high = std::min(range.high, kLimits[length] - 1);
      if (low > high) continue;
      if (length == 1) {
        ascii = ascii | ByteSet::range(static_cast<int>(low), static_cast<int>(high));
      } else {
        parts.push_back(utf8_range(*this, low, high, length, length));
      }
    }
  }
  parts.push_back(bytes(ascii));
  return any_of(std::move(parts));
}

}  // namespace vitrine::constrain

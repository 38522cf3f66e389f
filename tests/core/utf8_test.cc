// SPDX-License-Identifier: Apache-2.0
// UTF-8 against the C++ library's encoder: what it writes for each of the 1,112,064 code points is
// valid, nothing else is. Every text of up to four bytes at the boundaries of a table of bytes.
#include "src/core/utf8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bitset>
#include <locale>
#include <memory>
#include <vector>

namespace vitrine {
namespace {

constexpr size_t kNumCodePoints = 0x110000 - 0x800;

std::string library_encoding(char32_t code_point) {
  using Codec = std::codecvt<char32_t, char8_t, std::mbstate_t>;
  const auto& codec = std::use_facet<Codec>(std::locale::classic());
  std::mbstate_t state{};
  char8_t bytes[4];
  const char32_t* from = nullptr;
  char8_t* to = nullptr;
  EXPECT_EQ(codec.out(state, &code_point, &code_point + 1, from, bytes, bytes + 4, to), Codec::ok);
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(to - bytes)};
}

std::vector<char32_t> all_code_points() {
  std::vector<char32_t> out;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c < 0xD800 || c > 0xDFFF) out.push_back(c);
  }
  return out;
}

/// Decides by the list of all encodings what is a character and what may become one.
class Oracle {
 public:
  Oracle() {
    for (const char32_t c : all_code_points()) {
      encodings_.push_back(library_encoding(c));
      for (size_t size = 1; size < encodings_.back().size(); ++size) {
        beginnings_->set(key(encodings_.back().substr(0, size)));
      }
    }
    std::ranges::sort(encodings_);
  }

  bool is_character(const std::string& text) const {
    return std::ranges::binary_search(encodings_, text);
  }
  bool is_beginning(const std::string& text) const {
    return text.size() < 4 && beginnings_->test(key(text));
  }

  /// What read_utf8 must say of a text's first character, but for the code point.
  Utf8Character first_of(const std::string& text) const {
    size_t begun = 0;
    for (size_t size = 1; size <= text.size(); ++size) {
      if (is_character(text.substr(0, size))) return {0, size, true, false};
      if (!is_beginning(text.substr(0, size))) break;
      begun = size;
    }
    return {0xFFFD, std::max<size_t>(begun, 1), false, begun == text.size()};
  }

 private:
  /// Up to three bytes as a number of their own.
  static size_t key(const std::string& text) {
    size_t number = 0;
    for (const char byte : text) number = number << 8 | static_cast<uint8_t>(byte);
    return number | (text.size() - 1) << 24;
  }

  std::vector<std::string> encodings_;
  std::unique_ptr<std::bitset<size_t{3} << 24>> beginnings_ =
      std::make_unique<std::bitset<size_t{3} << 24>>();
};

/// Calls `check` with every text of one to four bytes at the boundaries of Unicode's table 3-7.
template <typename Check>
void for_each_text(const Check& check) {
  static constexpr unsigned char kBytes[] = {0x00, 0x22, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0,
                                             0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED,
                                             0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
  for (size_t size = 1; size <= 4; ++size) {
    std::vector<size_t> at(size);
    std::string text(size, '\0');
    for (bool has_more = true; has_more;) {
      for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(kBytes[at[i]]);
      check(text);
      has_more = false;
      for (size_t i = 0; i < size && !has_more; ++i) {
        at[i] = (at[i] + 1) % std::size(kBytes);
        has_more = at[i] != 0;
      }
    }
  }
}

TEST(Utf8, EveryCodePointIsWrittenAsTheLibraryDoesAndReadBack) {
  const std::vector<char32_t> code_points = all_code_points();
  ASSERT_EQ(code_points.size(), kNumCodePoints);
  std::string all;
  for (const char32_t c : code_points) {
    const size_t begin = all.size();
    append_utf8(c, all);
    ASSERT_EQ(all.substr(begin), library_encoding(c)) << std::hex << uint32_t{c};
    ASSERT_FALSE(is_continuation(all[begin]));
    ASSERT_TRUE(
        std::all_of(all.begin() + static_cast<ptrdiff_t>(begin) + 1, all.end(), is_continuation));
  }
  EXPECT_TRUE(is_utf8(all));
  size_t at = 0;
  for (const char32_t c : code_points) ASSERT_EQ(next_code_point(all, at), c);
  EXPECT_EQ(at, all.size());
  std::string copy;
  EXPECT_EQ(append_lossy(all, false, copy), all.size());
  EXPECT_EQ(copy, all);
}

TEST(Utf8, EveryTextAtTheBoundariesIsReadByItsDefinition) {
  const Oracle oracle;
  size_t count = 0;
  for_each_text([&](const std::string& text) {
    ++count;
    const Utf8Character want = oracle.first_of(text);
    const Utf8Character got = read_utf8("x" + text, 1);
    ASSERT_EQ(got.is_valid, want.is_valid) << testing::PrintToString(text);
    ASSERT_EQ(got.size, want.size) << testing::PrintToString(text);
    ASSERT_EQ(got.is_cut, want.is_cut) << testing::PrintToString(text);
    if (got.is_valid) {
      ASSERT_EQ(library_encoding(got.code_point), text.substr(0, got.size));
    } else {
      ASSERT_EQ(got.code_point, char32_t{0xFFFD});
    }
    // The whole text, with what is invalid replaced.
    std::string replaced;
    size_t left = 0;  // of an unfinished character at the end
    bool is_all_valid = true;
    for (size_t at = 0; at < text.size();) {
      const Utf8Character next = oracle.first_of(text.substr(at));
      replaced += next.is_valid ? text.substr(at, next.size) : "\uFFFD";
      is_all_valid = is_all_valid && next.is_valid;
      at += next.size;
      if (next.is_cut) left = next.size;
    }
    ASSERT_EQ(is_utf8(text), is_all_valid);
    std::string out = "before";
    ASSERT_EQ(append_lossy(text, true, out), text.size());
    ASSERT_EQ(out, "before" + replaced) << testing::PrintToString(text);
    out.clear();
    ASSERT_EQ(append_lossy(text, false, out), text.size() - left);
    ASSERT_EQ(out, left == 0 ? replaced : replaced.substr(0, replaced.size() - 3));
  });
  EXPECT_EQ(count, 26 + 26 * 26 + 26 * 26 * 26 + 26 * 26 * 26 * 26);
}

}  // namespace
}  // namespace vitrine

// SPDX-License-Identifier: Apache-2.0
// Scripts and binary properties of Unicode, as PCRE2's tables have them.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "char_ranges.h"
#include "core/utf8.h"
#include "vitrine/core.h"

namespace vitrine::constrain {

namespace {

struct PcreDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using Code = std::unique_ptr<pcre2_code, PcreDeleter>;
using MatchData = std::unique_ptr<pcre2_match_data, PcreDeleter>;

Code compile(const std::string& property) {
  const std::string pattern = "\\p{" + property + "}+";
  int error = 0;
  PCRE2_SIZE offset = 0;
  return Code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF,
                            &error, &offset, nullptr));
}

/// Every character there can be, in their order.
std::string all_characters() {
  std::string out;
  for (uint32_t code = 0; code <= kMaxCodePoint; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    append_utf8(code, out);
  }
  return out;
}

CharSet characters_of(const Code& code) {
  const MatchData found(pcre2_match_data_create(1, nullptr));
  if (!found) throw Error(ErrorKind::kOutOfMemory, "no memory for a property of Unicode");
  const std::string text = all_characters();
  const auto code_at = [&text](size_t at) { return decode_utf8(text, at); };
  CharSet out;
  for (size_t at = 0; at < text.size();) {
    const int count = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), at, PCRE2_NO_UTF_CHECK, found.get(), nullptr);
    if (count <= 0) break;
    const PCRE2_SIZE* const place = pcre2_get_ovector_pointer(found.get());
    size_t last = place[1] - 1;
    while (is_continuation(text[last])) --last;
    out.push_back({code_at(place[0]), code_at(last)});
    at = place[1];
  }
  return complement(complement(out));  // without the surrogates that a range runs across
}

/// As PCRE2 writes it, or empty: "Script=Greek" is "sc:Greek".
std::string pcre_name(std::string_view name) {
  std::string prefix;
  const size_t equals = name.find('=');
  if (equals != std::string_view::npos) {
    const std::string_view key = name.substr(0, equals);
    name.remove_prefix(equals + 1);
    if (key == "Script" || key == "sc") prefix = "sc:";
    if (key == "Script_Extensions" || key == "scx") prefix = "scx:";
    if (prefix.empty()) return "";
  }
  const bool is_word = std::ranges::all_of(name, [](char byte) {
    return byte == '_' || (byte >= '0' && byte <= '9') ||
           ((byte | 32) >= 'a' && (byte | 32) <= 'z');
  });
  // PCRE2 takes any case, and has names of its own: "Xan", "Xwd".
  if (!is_word || name.size() < 3 || name[0] < 'A' || name[0] > 'Z') return "";
  if (prefix.empty() && (name[0] == 'X' && name.size() == 3)) return "";
  return prefix + std::string(name);
}

}  // namespace

CharSet unicode_property(std::string_view name) {
  const std::string property = pcre_name(name);
  if (property.empty()) return {};
  static std::mutex mutex;
  static std::map<std::string, CharSet, std::less<>> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(property);
  if (found != known.end()) return found->second;
  const Code code = compile(property);
  // ECMA-262 has scripts behind "Script=" alone.
  const bool is_script =
      property.find(':') == std::string::npos && compile("sc:" + property) != nullptr;
  if (!code || is_script) return {};
  return known.emplace(property, characters_of(code)).first->second;
}

}  // namespace vitrine::constrain

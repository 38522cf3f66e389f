// SPDX-License-Identifier: Apache-2.0
#include "name_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text.h"

namespace vitrine::checkpoint {
namespace {

const pcre2_code* as_code(const std::shared_ptr<const void>& code) {
  return static_cast<const pcre2_code*>(code.get());
}

}  // namespace

NamePattern::NamePattern(const std::string& text, const std::string& place, bool whole)
    : text_(text), place_(place) {
  if (!text.starts_with("re:")) return;
  const std::string expression = text.substr(3);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      expression.size() > 4096
          ? nullptr
          : pcre2_compile(
                reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C | (whole ? PCRE2_ENDANCHORED : 0), &error,
                &offset, nullptr);
  if (code == nullptr) {
    throw_bad_file(place + ": regular expression " + quote_text(text) +
                   " can't be compiled; expected a valid one of at most 4096 bytes");
  }
  code_ = std::shared_ptr<const void>(
      code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
}

bool NamePattern::matches(std::string_view name) const {
  if (!is_expression()) return name == text_;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(as_code(code_), nullptr), &pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  if (!data || !context) throw Error(ErrorKind::kOutOfMemory, "a match can't be allocated");
  pcre2_set_match_limit(context.get(), 100'000);
  pcre2_set_heap_limit(context.get(), 1024);  // KiB
  const int result = pcre2_match(as_code(code_), reinterpret_cast<PCRE2_SPTR>(name.data()),
                                 name.size(), 0, 0, data.get(), context.get());
  if (result >= 0) return true;
  if (result == PCRE2_ERROR_NOMATCH) return false;
  throw_unsupported(place_ + ": regular expression " + quote_text(text_) +
                    " takes too many steps on " + quote_text(name) + "; expected a simpler one");
}

}  // namespace vitrine::checkpoint

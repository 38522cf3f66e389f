// SPDX-License-Identifier: Apache-2.0
#include "regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <new>

#include "core/cancel_watch.h"
#include "core/utf8.h"
#include "unicode.h"
#include "vitrine/core.h"

namespace vitrine::tokenizer {
namespace {

// PCRE2 counts its limit from each start, so a hostile pair of pattern and text is also stopped by
// a clock that is read between windows of starts.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 256 * 1024;
constexpr size_t kMinWindow = 64;
constexpr size_t kMaxWindow = size_t{1} << 20;
constexpr auto kTimeLimit = std::chrono::seconds(20);
constexpr auto kSlowWindow = std::chrono::milliseconds(1);

using CompileContext =
    std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)>;
using MatchContext = std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)>;
using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct Regex::Code {
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code{nullptr, &pcre2_code_free};
};

struct RegexScratch::State {
  MatchContext context{pcre2_match_context_create(nullptr), &pcre2_match_context_free};
  MatchData data{pcre2_match_data_create(1, nullptr), &pcre2_match_data_free};
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::now() + kTimeLimit;

  State() {
    if (!context || !data) throw std::bad_alloc();
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  }
};

RegexScratch::RegexScratch(const std::atomic<bool>* cancelled) : cancelled_(cancelled) {}
RegexScratch::~RegexScratch() = default;

Regex::Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}

Regex Regex::from_oniguruma(std::string_view pattern) {
  return from_pcre2(translate_oniguruma(pattern));
}

Regex Regex::from_literal(std::string_view text) {
  std::string pattern;
  for (size_t pos = 0; pos < text.size();) {
    std::array<char, 16> escape{};
    const auto code_point = static_cast<unsigned>(next_code_point(text, pos));
    std::snprintf(escape.data(), escape.size(), "\\x{%x}", code_point);
    pattern += escape.data();
  }
  return from_pcre2(std::move(pattern));
}

Regex Regex::from_pcre2(std::string pattern) {
  const CompileContext context(pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_shared<Code>();
  code->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_USE_OFFSET_LIMIT, &error, &offset,
                                 context.get()));
  if (!code->code) throw RegexError{false, pcre2_message(error)};
  // Where the JIT is missing or forbidden, the interpreter runs the same pattern.
  pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE);
  return Regex(std::move(code));
}

void Regex::split(std::string_view text, RegexScratch& scratch,
                  std::vector<RegexSpan>& spans) const {
  using Clock = std::chrono::steady_clock;
  spans.clear();
  if (!scratch.state_) scratch.state_ = std::make_unique<RegexScratch::State>();
  pcre2_match_context* context = scratch.state_->context.get();
  pcre2_match_data* data = scratch.state_->data.get();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto fail = [&](size_t start, const std::string& why) {
    throw Error(ErrorKind::kInvalidArgument,
                "text of " + std::to_string(text.size()) +
                    " bytes cannot be tokenized: the tokenizer's regex gave up at byte " +
                    std::to_string(start) + " (" + why + "); shorten the text");
  };
  size_t window = kMinWindow;
  size_t start = 0, previous_end = 0;
  bool has_previous = false;
  Clock::time_point call_time = Clock::now();
  for (uint32_t calls = 1;; ++calls) {
    core::throw_if_raised(scratch.cancelled_, "tokenizing");
    const size_t limit = text.size() - start > window ? start + window : text.size();
    pcre2_set_offset_limit(context, limit);
    // No UTF check: every text was made valid on its way in, and the check is linear each time.
    int result = pcre2_match(code_->code.get(), subject, text.size(), start, PCRE2_NO_UTF_CHECK,
                             data, context);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      result = pcre2_match(code_->code.get(), subject, text.size(), start,
                           PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
    }
    if (result == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
    if (result < 0 && result != PCRE2_ERROR_NOMATCH) fail(start, pcre2_message(result));

    if (result == PCRE2_ERROR_NOMATCH || calls % 64 == 0) {
      const Clock::time_point now = Clock::now();
      if (now > scratch.state_->deadline) fail(start, "time limit of 20 s");
      if (result == PCRE2_ERROR_NOMATCH) {
        window = now - call_time < kSlowWindow ? std::min(window * 2, kMaxWindow) : kMinWindow;
      }
      call_time = now;
    }
    if (result == PCRE2_ERROR_NOMATCH) {
      if (limit == text.size()) break;
      start = limit + 1;
      while (start < text.size() && is_continuation(text[start])) ++start;
      continue;
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
    const size_t match_begin = ends[0], match_end = ends[1];
    // As onig's iterator: an empty match right behind the last match does not count.
    if (match_begin == match_end && has_previous && previous_end == match_end) {
      if (start >= text.size()) break;
      next_code_point(text, start);
      continue;
    }
    if (match_begin > previous_end) spans.push_back({previous_end, match_begin, false});
    spans.push_back({match_begin, match_end, true});
    start = previous_end = match_end;
    has_previous = true;
  }
  if (previous_end != text.size()) spans.push_back({previous_end, text.size(), false});
}

}  // namespace vitrine::tokenizer

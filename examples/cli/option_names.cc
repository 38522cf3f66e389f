// SPDX-License-Identifier: Apache-2.0
#include "option_names.h"

#include <fmt/format.h>

#include <cctype>
#include <string_view>

namespace cli {

namespace {

struct FieldName {
  std::string_view field, option;
  bool is_in_logs = false;  // a log has a field of this name, too
};
constexpr FieldName kFieldNames[] = {
    {"activation_dtype", "--activation-type"},
    {"attribution", "--attribution"},
    {"audit_level", "--audit-level"},
    {"draft_kv_bytes", "--draft-kv-bytes"},
    {"endpoint", "--kv-events"},
    {"expert_cache_bytes", "--expert-cache"},
    {"expert_norms", "--expert-norms", true},
    {"hidden_state_layers", "--hidden-states"},
    {"is_public", "--kv-events-public"},
    {"keep_logits", "--logprobs"},
    {"kv_bytes", "--kv-bytes"},
    {"kv_codecs", "--kv-type"},
    {"max_context", "-c"},
    {"max_logit_rows", "--step-tokens"},
    {"max_sequences", "--parallel"},
    {"max_step_tokens", "--step-tokens"},
    {"mmap_weights", "--mmap"},
    {"replay_endpoint", "--kv-events-replay"},
    {"rope_frequencies", "--rope-frequencies", true},
    {"strict", "--strict"},
    {"threads", "-t"},
};
constexpr std::string_view kPrefixes[] = {"engine option ", "engine options ", "EngineOptions::",
                                          "GenerateOptions::", "kv event option "};

bool is_of_a_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '/' ||
         c == '.';
}

/// The prefix that stands right before this place of a message; empty: none does.
std::string_view prefix_before(const std::string& message, size_t at) {
  for (const std::string_view prefix : kPrefixes) {
    if (at >= prefix.size() && message.compare(at - prefix.size(), prefix.size(), prefix) == 0) {
      return prefix;
    }
  }
  return {};
}

/// Replaces a field where it stands as a word. One that is an English word, too, or a name in a
/// log, counts behind a prefix alone.
void replace(std::string& message, const FieldName& name) {
  const bool needs_prefix = name.is_in_logs || name.field.find('_') == name.field.npos;
  for (size_t at = message.find(name.field); at != message.npos;
       at = message.find(name.field, at + 1)) {
    size_t begin = at, end = at + name.field.size();
    const bool is_quoted =
        begin > 0 && message[begin - 1] == '\'' && end < message.size() && message[end] == '\'';
    if (is_quoted) --begin, ++end;
    const std::string_view prefix = prefix_before(message, begin);
    if (needs_prefix && prefix.empty()) continue;
    const bool is_part =
        (begin > 0 && is_of_a_word(message[begin - 1])) ||
        (end < message.size() && is_of_a_word(message[end]) && message[end] != '.');
    if (is_part) continue;
    begin -= prefix.size();
    message.replace(begin, end - begin, name.option);
    at = begin;
  }
}

}  // namespace

std::string with_option_names(std::string message) {
  for (const FieldName& name : kFieldNames) {
    replace(message, name);
    // Where the library named the option, too.
    const std::string option(name.option), twice = fmt::format("{0}, {0}", option);
    if (const size_t at = message.find(twice); at != message.npos) {
      message.replace(at, twice.size(), option);
    }
  }
  return message;
}

}  // namespace cli

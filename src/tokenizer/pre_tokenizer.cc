// SPDX-License-Identifier: Apache-2.0
#include "pre_tokenizer.h"

#include <algorithm>

#include "char_set.h"
#include "normalizer.h"
#include "unicode.h"

namespace vitrine::tokenizer {
namespace {

// GPT-2's pattern, which ByteLevel uses unless told not to.
constexpr char kByteLevelPattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
std::string numeric_pattern() { return "[\\p{N}" + std::string(numeric_additions()) + "]"; }

std::string punctuation_pattern() {
  return "(?![" + std::string(punctuation_removals()) + "])[\\p{P}$+<=>^`|~" +
         std::string(punctuation_additions()) + "]";
}

std::string whitespace_pattern() {
  const std::string word = kWordItems + std::string(rust_word_additions());
  return "[" + word + "]+|[^" + word + kWhitespaceItems + "]+";
}

}  // namespace

PreTokenizer PreTokenizer::load(const JsonNode& node) {
  PreTokenizer pre_tokenizer;
  if (!node.is_null()) pre_tokenizer.add(node);
  return pre_tokenizer;
}

PreTokenizer::Behavior PreTokenizer::load_behavior(const JsonNode& node) {
  const std::string& name = node.as_string();
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  node.fail(quote(name), "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
}

void PreTokenizer::add(const JsonNode& node) {
  const std::string& type = node.at("type").as_string();
  if (type == "Sequence") {
    for (const JsonNode& element : node.at("pretokenizers").elements()) add(element);
    return;
  }
  Step step;
  if (type == "Split") {
    step.regex = node.at("pattern").as_pattern();
    step.behavior = load_behavior(node.at("behavior"));
    step.invert = node.at("invert").as_bool();
  } else if (type == "ByteLevel") {
    if (node.get("use_regex").as_bool_or(true)) {
      step.regex = Regex::from_oniguruma(kByteLevelPattern);
    }
    step.add_prefix_space = node.at("add_prefix_space").as_bool();
    step.to_bytes = true;
  } else if (type == "Digits") {
    step.regex = Regex::from_pcre2(numeric_pattern());
    const bool is_individual = node.at("individual_digits").as_bool();
    step.behavior = is_individual ? Behavior::kIsolated : Behavior::kContiguous;
  } else if (type == "Metaspace") {
    step.metaspace = Metaspace::load(node);
    if (step.metaspace->split) {
      step.regex = Regex::from_pcre2("\\Q" + step.metaspace->replacement + "\\E");
      step.behavior = Behavior::kMergedWithNext;
    }
  } else if (type == "Punctuation") {
    step.regex = Regex::from_pcre2(punctuation_pattern());
    if (const JsonNode behavior = node.get("behavior"); !behavior.is_null()) {
      step.behavior = load_behavior(behavior);
    }
  } else if (type == "Whitespace") {
    step.regex = Regex::from_pcre2(whitespace_pattern());
    step.behavior = Behavior::kRemoved;
    step.invert = true;
  } else if (type == "WhitespaceSplit") {
    step.regex = Regex::from_pcre2(std::string("[") + kWhitespaceItems + "]");
    step.behavior = Behavior::kRemoved;
  } else {
    node.get("type").unsupported("pre-tokenizer " + quote(type));
  }
  steps_.push_back(std::move(step));
}

/// Joins or drops spans as the behaviour says; empty ones are dropped by the caller.
void PreTokenizer::cut(std::vector<RegexSpan>& spans, Behavior behavior) {
  if (behavior == Behavior::kIsolated) return;
  if (behavior == Behavior::kRemoved) {
    std::erase_if(spans, [](const RegexSpan& span) { return span.is_match; });
    return;
  }
  // The three joins are one fold; MergedWithNext runs it from the end.
  const bool is_reverse = behavior == Behavior::kMergedWithNext;
  if (is_reverse) std::reverse(spans.begin(), spans.end());
  bool previous_match = false;
  size_t count = 0;
  for (const RegexSpan span : spans) {
    const bool joins = behavior == Behavior::kContiguous ? span.is_match == previous_match
                                                         : span.is_match && !previous_match;
    previous_match = span.is_match;
    if (!joins || count == 0) {
      spans[count++] = span;
    } else if (is_reverse) {
      spans[count - 1].begin = span.begin;
    } else {
      spans[count - 1].end = span.end;
    }
  }
  spans.resize(count);
  if (is_reverse) std::reverse(spans.begin(), spans.end());
}

/// Writes the replacement for every space, and before the words that the scheme names.
void PreTokenizer::replace_spaces(const Metaspace& metaspace, bool is_start, Words& words) {
  Words replaced;
  for (const Words::Span& span : words.spans) {
    const std::string_view word = words.word(span);
    const size_t begin = replaced.text.size();
    const bool is_prefixed =
        metaspace.scheme == Metaspace::Scheme::kAlways ||
        (metaspace.scheme == Metaspace::Scheme::kFirst && is_start && span.begin == 0);
    if (is_prefixed && word[0] != ' ' && !word.starts_with(metaspace.replacement)) {
      replaced.text += metaspace.replacement;
    }
    for (char c : word) {
      if (c == ' ') {
        replaced.text += metaspace.replacement;
      } else {
        replaced.text += c;
      }
    }
    replaced.spans.push_back({begin, replaced.text.size()});
  }
  words = std::move(replaced);
}

Words PreTokenizer::apply(std::string text, bool is_start, RegexScratch& scratch) const {
  Words words;
  words.text = std::move(text);
  if (!words.text.empty()) words.spans.push_back({0, words.text.size()});
  std::vector<RegexSpan> cuts;
  std::vector<Words::Span> next;
  for (const Step& step : steps_) {
    if (step.add_prefix_space) {
      Words spaced;
      for (const Words::Span& span : words.spans) {
        const size_t begin = spaced.text.size();
        if (words.text[span.begin] != ' ') spaced.text += ' ';
        spaced.text += words.word(span);
        spaced.spans.push_back({begin, spaced.text.size()});
      }
      words = std::move(spaced);
    }
    if (step.metaspace) replace_spaces(*step.metaspace, is_start, words);
    if (step.regex) {
      next.clear();
      for (const Words::Span& span : words.spans) {
        step.regex->split(words.word(span), scratch, cuts);
        if (step.invert) {
          for (RegexSpan& cut : cuts) cut.is_match = !cut.is_match;
        }
        cut(cuts, step.behavior);
        for (const RegexSpan& cut : cuts) {
          if (cut.end > cut.begin) next.push_back({span.begin + cut.begin, span.begin + cut.end});
        }
      }
      words.spans.swap(next);
    }
    if (step.to_bytes) {
      Words mapped;
      mapped.text.reserve(words.text.size() * 2);
      for (Words::Span& span : words.spans) {
        const size_t begin = mapped.text.size();
        append_byte_level(words.word(span), mapped.text);
        span = {begin, mapped.text.size()};
      }
      words.text = std::move(mapped.text);
    }
  }
  return words;
}

}  // namespace vitrine::tokenizer

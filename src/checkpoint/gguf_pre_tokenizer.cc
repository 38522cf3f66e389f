// SPDX-License-Identifier: Apache-2.0
#include "gguf_pre_tokenizer.h"

#include <algorithm>
#include <array>
#include <span>

namespace vitrine::checkpoint {
namespace {

using Json = nlohmann::json;

// The patterns that the named models' tokenizer.json was published with; `default` names no model
// and is what llama.cpp does with a file that says nothing.
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kKimi =
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kExaoneMoe =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kMiniCpm5 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
// clang-format off: it cuts the literal at other places each time it runs
// Cased letters as those files list them; escapes where normalisation would rewrite the character.
constexpr std::string_view kDeepSeekLetters =
    "\\s?["
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-"
    "ჅᎠ-"
    "Ᏽᏸ-"
    "ᏽᲐ-"
    "ᲺᲽ-"
    "Ჿᴀ-"
    "ᴫ"
    "ᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴ"
    "ῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-"
    "ꚛꜢ-"
    "ꝯꝱ-"
    "ꞇꞋ-"
    "ꞎꭰ-"
    "ꮿ"
    "ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
    "]+";
// clang-format on
constexpr std::string_view kDeepSeek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kPoro = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
constexpr std::string_view kHanAndHangul = "[一-龥ࠀ-一가-퟿]+";
// Not a pattern: the step that those files call Digits.
constexpr std::string_view kDigit = "digit";

constexpr std::array kDefaultPatterns = {std::string_view(R"([\p{P}\$\+<=>\^~\|]+)"), kGpt2,
                                         std::string_view(R"(\p{N}+)"),
                                         std::string_view("[0-9][0-9][0-9]")};
constexpr std::array kFalconPatterns = {std::string_view(R"([\p{P}\$\+<=>\^~\|`]+)"), kGpt2,
                                        std::string_view("[0-9][0-9][0-9]")};
constexpr std::array kGpt2Patterns = {kGpt2};
constexpr std::array kDigitsGpt2Patterns = {kDigit, kGpt2};
constexpr std::array kLlama3Patterns = {kLlama3};
constexpr std::array kQwen2Patterns = {kQwen2};
constexpr std::array kTekkenPatterns = {kTekken};
constexpr std::array kGpt4oPatterns = {kGpt4o};
constexpr std::array kQwen35Patterns = {kQwen35};
constexpr std::array kKimiPatterns = {kKimi};
constexpr std::array kExaoneMoePatterns = {kExaoneMoe};
constexpr std::array kMiniCpm5Patterns = {std::string_view(R"(\p{N}{1,3})"), kMiniCpm5};
constexpr std::array kLagunaPatterns = {std::string_view(R"([^\n]+|[\n]+)"), kQwen2};
constexpr std::array kSeedCoderPatterns = {kSeedCoder};
constexpr std::array kBailingPatterns = {kBailing};
constexpr std::array kPoroPatterns = {kPoro};
constexpr std::array kVikingPatterns = {kPoro, kDigit};
constexpr std::array kDeepSeekPatterns = {std::string_view(R"([\r\n])"),
                                          kDeepSeekLetters,
                                          std::string_view(R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)"),
                                          std::string_view(R"(\s+$)"),
                                          kHanAndHangul,
                                          std::string_view(R"(\p{N}+)")};
constexpr std::array kDeepSeekCoderPatterns = {
    std::string_view(R"([\r\n])"), std::string_view(R"(\s?\p{L}+)"),
    std::string_view(R"(\s?\p{P}+)"), kHanAndHangul, kDigit};
constexpr std::array kDeepSeek3Patterns = {
    std::string_view(R"(\p{N}{1,3})"), std::string_view("[一-龥぀-ゟ゠-ヿ]+"), kDeepSeek3};

struct Entry {
  std::string_view name;
  std::span<const std::string_view> patterns;  // each cuts what the ones before it left
  bool normalizes_nfc = false;
  bool ignores_merges = false;
  bool adds_bos = false;
};

constexpr Entry kEntries[] = {
    {"default", kDefaultPatterns},
    {"llama-bpe", kLlama3Patterns, false, true, true},
    {"llama3", kLlama3Patterns, false, true, true},
    {"llama-v3", kLlama3Patterns, false, true, true},
    {"falcon3", kLlama3Patterns, false, true, true},
    {"falcon-h1", kLlama3Patterns, false, true, true},
    {"lfm2", kLlama3Patterns, false, true, true},
    {"pixtral", kLlama3Patterns, false, true, true},
    {"midm-2.0", kLlama3Patterns, false, true, true},
    {"dbrx", kLlama3Patterns},
    {"smaug-bpe", kLlama3Patterns},
    {"glm4", kLlama3Patterns, false, true},
    {"glm5", kLlama3Patterns, false, true},
    {"minicpm5", kMiniCpm5Patterns, false, true},
    {"chatglm-bpe", kLlama3Patterns},
    {"qwen2", kQwen2Patterns, true},
    {"qwen35", kQwen35Patterns, true},
    {"laguna", kLagunaPatterns},
    {"stablelm2", kQwen2Patterns},
    {"solar-open", kQwen2Patterns},
    {"deepseek-r1-qwen", kQwen2Patterns},
    {"megrez", kQwen2Patterns},
    {"kormo", kQwen2Patterns},
    {"f2llmv2", kQwen2Patterns},
    {"hunyuan", kQwen2Patterns},
    {"grok-2", kQwen2Patterns},
    {"gpt-2", kGpt2Patterns},
    {"phi-2", kGpt2Patterns},
    {"mellum", kGpt2Patterns},
    {"gigachat", kGpt2Patterns},
    {"a.x-4.0", kGpt2Patterns},
    {"mpt", kGpt2Patterns, true},
    {"olmo", kGpt2Patterns, true},
    {"jais", kGpt2Patterns},
    {"trillion", kGpt2Patterns},
    {"exaone4", kGpt2Patterns},
    {"granite-docling", kGpt2Patterns},
    {"exaone-moe", kExaoneMoePatterns},
    {"smollm", kDigitsGpt2Patterns},
    {"mellum2", kDigitsGpt2Patterns},
    {"starcoder", kDigitsGpt2Patterns},
    {"refact", kDigitsGpt2Patterns},
    {"command-r", kDigitsGpt2Patterns, true},
    {"codeshell", kDigitsGpt2Patterns},
    {"exaone", kDigitsGpt2Patterns},
    {"minerva-7b", kDigitsGpt2Patterns},
    {"falcon", kFalconPatterns},
    {"deepseek-llm", kDeepSeekPatterns},
    {"deepseek-coder", kDeepSeekCoderPatterns},
    {"deepseek-v3", kDeepSeek3Patterns},
    {"hunyuan-dense", kDeepSeek3Patterns},
    {"hy_v4", kDeepSeek3Patterns},
    {"joyai-llm", kDeepSeek3Patterns},
    {"tekken", kTekkenPatterns, false, true, true},
    {"gpt-4o", kGpt4oPatterns},
    {"llama4", kGpt4oPatterns},
    {"minimax-m2", kGpt4oPatterns},
    {"kanana2", kGpt4oPatterns},
    {"kimi-k2", kKimiPatterns},
    {"seed-coder", kSeedCoderPatterns},
    {"bailingmoe", kBailingPatterns},
    {"bailingmoe2", kBailingPatterns},
    {"llada-moe", kBailingPatterns},
    {"poro-chat", kPoroPatterns},
    {"bloom", kPoroPatterns},
    {"gpt3-finnish", kPoroPatterns},
    {"viking", kVikingPatterns},
};

Json byte_level() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", false}};
}

Json split_by(std::string_view pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json sequence_of(Json steps) {
  steps.push_back(byte_level());
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

}  // namespace

nlohmann::json pre_tokenizer_of(std::string_view pattern) {
  Json steps = Json::array();
  steps.push_back(split_by(pattern));
  return sequence_of(std::move(steps));
}

bool find_gguf_pre_tokenizer(std::string_view name, GgufPreTokenizer& found) {
  const auto* entry = std::ranges::find(kEntries, name, &Entry::name);
  if (entry == std::end(kEntries)) return false;
  Json steps = Json::array();
  for (std::string_view pattern : entry->patterns) {
    if (pattern == kDigit) {
      steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
      continue;
    }
    steps.push_back(split_by(pattern));
  }
  found = {.name = entry->name,
           .normalizes_nfc = entry->normalizes_nfc,
           .ignores_merges = entry->ignores_merges,
           .adds_bos = entry->adds_bos,
           .pre_tokenizer = sequence_of(std::move(steps))};
  return true;
}

std::string_view name_of_gguf_pre_tokenizer(
    const std::function<bool(const GgufPreTokenizer&)>& is_it) {
  for (const Entry& entry : kEntries) {
    GgufPreTokenizer known;
    if (find_gguf_pre_tokenizer(entry.name, known) && is_it(known)) return entry.name;
  }
  return {};
}

std::string gguf_pre_tokenizer_names() {
  std::string names;
  for (const Entry& entry : kEntries) {
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  }
  return names;
}

}  // namespace vitrine::checkpoint

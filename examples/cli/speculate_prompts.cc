// SPDX-License-Identifier: Apache-2.0
// The prompts of `bench speculate`.
#include <fmt/format.h>

#include <sstream>

#include "chat_prompt.h"
#include "speculate_runs.h"
#include "text_file.h"

namespace cli {

namespace {

constexpr size_t kMaxPromptsBytes = size_t{64} << 20;

/// One line a prompt: a JSON string, or an object with "prompt". The first `most`, all where it is
/// 0.
std::vector<std::string> read_bench_prompts(const std::string& path, int most) {
  std::istringstream lines(read_text_file(path, kMaxPromptsBytes));
  std::vector<std::string> prompts;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    if (most > 0 && std::ssize(prompts) == most) break;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      const auto json = nlohmann::json::parse(line);
      prompts.push_back((json.is_object() ? json.at("prompt") : json).get<std::string>());
    } catch (const nlohmann::json::exception&) {
      refuse(fmt::format(
          "{}:{}: no prompt; expected one JSON string a line, or an object with a string 'prompt'",
          path, number));
    }
  }
  if (prompts.empty()) refuse(fmt::format("{} has no prompt; expected one a line", path));
  return prompts;
}

}  // namespace

std::vector<std::vector<int32_t>> encode_prompts(const BenchSpeculateArguments& arguments,
                                                 const vitrine::Checkpoint& checkpoint,
                                                 const vitrine::Tokenizer& tokenizer,
                                                 std::vector<int32_t>& end_ids) {
  const auto chat = arguments.is_raw ? std::nullopt
                                     : vitrine::ChatTemplate::from_tokenizer_config(
                                           checkpoint.tokenizer_config_json(),
                                           checkpoint.tokenizer_config_name());
  if (chat) end_ids = vitrine::end_of_turn_ids(tokenizer, *chat);
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& text : read_bench_prompts(arguments.prompts, arguments.max_prompts)) {
    const std::string prompt = chat ? ChatPromptOptions{}.render(*chat, {{"user", text}}) : text;
    prompts.push_back(tokenizer.encode(prompt, /*add_special_tokens=*/!chat));
    if (prompts.back().empty()) refuse("a prompt has no token; expected text in each");
  }
  return prompts;
}

}  // namespace cli

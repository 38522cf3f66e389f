// SPDX-License-Identifier: Apache-2.0
// vitrine tokenize: text to ids and pieces, ids to text.
#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "common.h"
#include "prompt_options.h"

namespace cli {

namespace {

struct TokenizeArguments {
  std::string model;
  PromptOptions prompt;
  std::optional<std::string> ids;
  bool json = false, keep_special = false;
};

/// Needs no weights where there is a tokenizer.json, or a GGUF file's header.
vitrine::Tokenizer read_tokenizer(const std::string& model) {
  std::error_code error;
  if (std::filesystem::is_regular_file(model, error)) {
    return open_tokenizer(vitrine::Checkpoint::open(model));
  }
  if (!std::filesystem::is_directory(model, error)) {
    refuse(
        fmt::format("model '{}' is not a folder that exists; expected one with tokenizer.json, "
                    "or a .gguf file",
                    model));
  }
  const std::string path = (std::filesystem::path(model) / "tokenizer.json").string();
  if (std::filesystem::exists(path, error)) return vitrine::Tokenizer::from_file(path);
  for (const char* name : {"tekken.json", "tiktoken.model"}) {
    if (!std::filesystem::exists(std::filesystem::path(model) / name, error)) continue;
    return open_tokenizer(vitrine::Checkpoint::open(model));
  }
  refuse(fmt::format("{} is not there; expected the model's tokenizer", path));
}

/// As the vocabulary spells it; a part of a character as its bytes: <0xF0><0x9F>.
std::string shown(const vitrine::Tokenizer& tokenizer, int32_t id) {
  const std::string bytes = tokenizer.token_bytes(id);
  if (find_invalid_utf8(bytes) == bytes.size()) return tokenizer.token_text(id);
  std::string text;
  for (const char byte : bytes) {
    text += fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte));
  }
  return text;
}

int run_tokenize(const TokenizeArguments& arguments) {
  const vitrine::Tokenizer tokenizer = read_tokenizer(arguments.model);
  nlohmann::ordered_json json;
  std::string plain;
  if (arguments.prompt.is_given()) {
    const std::vector<int32_t> ids = tokenizer.encode(arguments.prompt.read());
    std::vector<std::string> pieces;
    for (int32_t id : ids) {
      pieces.push_back(tokenizer.token_text(id));
      plain += fmt::format("{}\t{}\n", id, shown(tokenizer, id));
    }
    json["ids"] = ids;
    json["pieces"] = pieces;
  } else {
    const std::vector<int32_t> ids = read_ids(*arguments.ids, tokenizer.vocab_size());
    plain = tokenizer.decode(ids, !arguments.keep_special);
    json["text"] = plain;
    plain += '\n';
  }
  if (arguments.json) {
    write_json(json);
  } else {
    write_out(plain);
  }
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* tokenize =
      app.add_subcommand("tokenize", "Turns text into ids and pieces, or ids into text");
  add_model(*tokenize, arguments->model, "folder with tokenizer.json, or a .gguf file");
  CLI::Option_group* input = tokenize->add_option_group("input");
  arguments->prompt.add_to(*input);
  input->add_option("--ids", arguments->ids, "file with a JSON array of ids");
  input->require_option(1);
  tokenize->add_flag("--keep-special-tokens", arguments->keep_special,
                     "ids to text: show special tokens too");
  tokenize->add_flag("--json", arguments->json, "one JSON object instead of lines");
  tokenize->callback(
      [arguments, &command] { command = [arguments] { return run_tokenize(*arguments); }; });
}

}  // namespace cli

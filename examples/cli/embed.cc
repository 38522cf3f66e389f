// SPDX-License-Identifier: Apache-2.0
// vitrine embed: texts to vectors, several texts a step.
#include "vitrine/embed.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "closing_note.h"
#include "common.h"
#include "lora_options.h"
#include "prompt_options.h"
#include "text_file.h"

namespace cli {

namespace {

constexpr size_t kMaxEmbedBytes = size_t{64} << 20;
constexpr int64_t kMostEmbedContext = 8192;     // where -c does not say
constexpr int64_t kMostEmbedPositions = 65536;  // of all sequences together
constexpr int64_t kMostEmbedSequences = 16;

struct EmbedArguments {
  std::string model;
  std::optional<std::string> text, file;
  std::string pooling = "mean", format = "json-lines";
  bool normalize = true, no_normalize = false, truncate = false;
  int context = 0;
  DeviceOptions device;
};

/// A text, and what a message calls it.
struct NamedText {
  std::string name, text;
  std::vector<int32_t> ids;
  size_t whole_length = 0;  // in tokens, before it was cut
};

std::vector<NamedText> read_lines_of_text(const EmbedArguments& arguments) {
  if (!arguments.file) return {{"the text", read_text_argument(*arguments.text), {}, 0}};
  const std::string all = read_text_file(*arguments.file, kMaxEmbedBytes);
  std::vector<NamedText> texts;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\n', at), all.size());
    std::string line = all.substr(at, end - at);
    if (line.ends_with('\r')) line.pop_back();
    texts.push_back(
        {fmt::format("{}, line {}", *arguments.file, texts.size() + 1), std::move(line), {}, 0});
    at = end + 1;
  }
  if (texts.empty()) refuse(*arguments.file + ": is empty; expected a text in each line");
  return texts;
}

/// Sets the ids of each text. Refuses whatever is no text, and what is too long.
void encode_for_embedding(const EmbedArguments& arguments, const vitrine::Tokenizer& tokenizer,
                          int64_t limit, std::vector<NamedText>& texts) {
  for (NamedText& one : texts) {
    if (one.text.empty()) refuse(one.name + " is empty; expected a text in each line");
    const size_t bad = find_invalid_utf8(one.text);
    if (bad < one.text.size()) {
      refuse(fmt::format("{} is no UTF-8 (byte {} is 0x{:02X}); expected UTF-8", one.name, bad,
                         static_cast<unsigned char>(one.text[bad])));
    }
    one.ids = tokenizer.encode(one.text);
    one.whole_length = one.ids.size();
    if (one.ids.empty()) refuse(one.name + " has no token; expected a text");
    if (std::ssize(one.ids) <= limit) continue;
    if (!arguments.truncate) {
      refuse(fmt::format(
          "{} has {} tokens, and the context holds {}; expected a shorter text, a larger "
          "-c, or --truncate, which reads its first {}",
          one.name, one.ids.size(), limit, limit));
    }
    one.ids.resize(static_cast<size_t>(limit));
  }
}

/// Each number by as many digits as read back to the same float.
std::string numbers(std::span<const float> vector, const char* separator) {
  return fmt::format("{}", fmt::join(vector, separator));
}

void write_vectors(const EmbedArguments& arguments, const NamedText& text, size_t number,
                   std::span<const float> vectors, size_t width) {
  std::vector<std::string> rows;
  const bool is_table = arguments.format == "table";
  for (size_t at = 0; at < vectors.size(); at += width) {
    rows.push_back(numbers(vectors.subspan(at, width), is_table ? " " : ","));
  }
  if (is_table) return write_out(fmt::format("{}\n", fmt::join(rows, "\n")));
  const std::string cut = text.ids.size() < text.whole_length
                              ? fmt::format(R"("truncated_from":{},)", text.whole_length)
                              : "";
  const bool is_each = arguments.pooling == "none";
  write_out(fmt::format(R"({{"index":{},"tokens":{},{}"{}":{}[{}]{}}})", number, text.ids.size(),
                        cut, is_each ? "embeddings" : "embedding", is_each ? "[" : "",
                        fmt::join(rows, "],["), is_each ? "]" : "") +
            "\n");
}

int run_embed(const EmbedArguments& arguments) {
  vitrine::EngineOptions options = arguments.device.engine_options();
  std::vector<NamedText> texts = read_lines_of_text(arguments);
  {
    const vitrine::Checkpoint checkpoint = open_model(arguments.model);
    const vitrine::ModelFacts config = vitrine::read_model_facts(checkpoint);
    const vitrine::Tokenizer tokenizer = vitrine::open_tokenizer(checkpoint, config);
    encode_for_embedding(
        arguments, tokenizer,
        context_limit(arguments.context, config, arguments.model, kMostEmbedContext), texts);
  }
  std::vector<std::vector<int32_t>> ids;
  int64_t longest = 1, num_tokens = 0;
  size_t num_cut = 0;
  for (const NamedText& one : texts) {
    ids.push_back(one.ids);
    longest = std::max(longest, std::ssize(one.ids));
    num_tokens += std::ssize(one.ids);
    if (one.ids.size() < one.whole_length) ++num_cut;
  }
  const int64_t sequences = std::min({std::ssize(texts), kMostEmbedSequences,
                                      std::max<int64_t>(1, kMostEmbedPositions / longest)});
  const auto engine = vitrine::Engine::load(
      arguments.model, vitrine::embedding_options(longest, options, static_cast<int>(sequences)));
  catch_interrupts();
  vitrine::EmbedOptions embed_options;
  embed_options.pooling = *vitrine::find_pooling(arguments.pooling);
  embed_options.normalize = !arguments.no_normalize;
  embed_options.before_step = [] { stop_if_interrupted("embed: cancelled before the end"); };
  const auto started = std::chrono::steady_clock::now();
  const auto width = static_cast<size_t>(engine->summary().hidden_size);
  vitrine::embed(*engine, ids, embed_options, [&](size_t number, std::span<const float> vectors) {
    write_vectors(arguments, texts[number], number, vectors, width);
  });
  const double seconds = seconds_since(started);
  write_remark(
      fmt::format("{} {} of {} tokens in {:.1f} s; pooling {}, {}{}", texts.size(),
                  texts.size() == 1 ? "text" : "texts", num_tokens, seconds, arguments.pooling,
                  arguments.no_normalize ? "not normalized" : "of length 1",
                  num_cut == 0 ? "" : fmt::format("; {} cut to {} tokens", num_cut, longest)));
  return 0;
}

}  // namespace

void add_embed(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<EmbedArguments>();
  CLI::App* embed = app.add_subcommand("embed", "Turns texts into vectors");
  add_model(*embed, arguments->model);
  CLI::Option* of_text =
      embed->add_option("-p,--prompt", arguments->text, "one text; - reads standard input");
  embed->add_option("-f,--file", arguments->file, "a file with a text in each line")
      ->check(not_empty())
      ->excludes(of_text);
  embed
      ->add_option("--pooling", arguments->pooling,
                   "what becomes of a text's hidden states: none keeps each token's")
      ->check(CLI::IsMember({"none", "mean", "last", "cls"}))
      ->capture_default_str();
  CLI::Option* normalize =
      embed->add_flag("--normalize", arguments->normalize,
                      "divide each vector by its Euclidean length, as is done anyway");
  embed->add_flag("--no-normalize", arguments->no_normalize, "leave vectors as they are")
      ->excludes(normalize);
  embed
      ->add_option("--format", arguments->format, "an object a line, or a line of numbers a vector")
      ->check(CLI::IsMember({"json-lines", "table"}))
      ->capture_default_str();
  embed
      ->add_option("-c,--context", arguments->context,
                   fmt::format("tokens that a text may have (default: the model's own limit, at "
                               "most {})",
                               kMostEmbedContext))
      ->check(CLI::Range(1, 1 << 30));
  embed->add_flag("--truncate", arguments->truncate,
                  "read the beginning of a longer text, and say so, in place of an error");
  add_quiet(*embed);
  add_lora(*embed, arguments->device.lora);
  arguments->device.add_to(*embed);
  embed->callback([arguments, &command] {
    if (!arguments->text && !arguments->file) throw CLI::RequiredError("--prompt or --file");
    command = [arguments] { return run_embed(*arguments); };
  });
}

}  // namespace cli

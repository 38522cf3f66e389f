// SPDX-License-Identifier: Apache-2.0
// vitrine calibrate: a corpus, looked through, as a file that `quantize --calibration` takes.
#include "vitrine/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "calibrate_experts.h"
#include "calibration_texts.h"
#include "chat_prompt.h"
#include "common.h"
#include "prompt_file.h"
#include "prompt_options.h"
#include "quantize_evidence.h"
#include "text_file.h"
#include "vitrine/gguf_export.h"

namespace cli {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxSourceBytes = size_t{1} << 30;
constexpr int64_t kMostTokens = int64_t{1} << 28;

struct CalibrateArguments {
  std::string model, out, importance, calibration;
  std::vector<std::string> texts, evaluations;
  std::string licence, purpose, retention, version, expires, scrubber_report;
  CalibrateExperts experts;
  int64_t tokens = 65536, window = 512;
  bool no_scrubbing = false;
};

/// The files that a path names: itself, or those of a folder in order of name.
std::vector<std::string> files_of(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<std::string> files;
  for (fs::recursive_directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->is_regular_file(error)) files.push_back(entry->path().string());
  }
  if (error) refuse(fmt::format("--text {}: {}", path, error.message()));
  if (files.empty()) refuse(fmt::format("--text {}: an empty folder; expected texts", path));
  std::ranges::sort(files);
  return files;
}

class SourceReader {
 public:
  explicit SourceReader(const vitrine::Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  /// A file as documents: each line of a .jsonl file, else the whole text.
  vitrine::CalibrationSource read(const std::string& path) {
    const std::string text = read_text_file(path, kMaxSourceBytes);
    vitrine::CalibrationSource source;
    source.name = fs::path(path).filename().string();
    source.sha256 = vitrine::sha256_of_text(text);
    if (path.ends_with(".jsonl")) {
      PromptFileOptions file;
      file.prompts = path;
      for (const GivenPrompt& prompt : file.read()) source.documents.push_back(document(prompt));
    } else {
      require_text(path, text);
      source.documents.push_back(text);
    }
    return source;
  }

 private:
  static void require_text(const std::string& path, std::string_view text) {
    const size_t bad = find_invalid_utf8(text);
    if (bad == text.size() && text.find('\0') == std::string_view::npos) return;
    refuse(fmt::format("{}: byte {} is no text; expected UTF-8", path,
                       std::min(bad, text.find('\0'))));
  }

  /// A conversation is written by the model's chat template.
  std::string document(const GivenPrompt& prompt) {
    if (!prompt.is_conversation()) return prompt.text;
    const ChatPromptOptions options =
        ChatPromptOptions{}.with_tools(prompt.tools_json, prompt.place);
    if (!chat_) chat_.emplace(open_chat_template(checkpoint_, options));
    return options.render(*chat_, prompt.messages, false);
  }

  const vitrine::Checkpoint& checkpoint_;
  std::optional<vitrine::ChatTemplate> chat_;
};

/// The lines for whoever made it: what is in it, and what is missing.
std::string describe(const vitrine::CalibrationTexts& calibration, const std::string& path) {
  const auto manifest = nlohmann::ordered_json::parse(calibration.manifest);
  std::string text = fmt::format("{}: {} tokens in {} texts\n", path,
                                 manifest["tokens"].get<int64_t>(), calibration.texts.size());
  for (const auto& source : manifest["sources"]) {
    text += fmt::format("  {}: {} of {} tokens, {} of {} documents\n",
                        source["name"].get<std::string>(), source["tokens_used"].get<int64_t>(),
                        source["tokens"].get<int64_t>(), source["documents_used"].get<int64_t>(),
                        source["documents"].get<int64_t>());
  }
  if (manifest["scrubbed"].is_object()) {
    std::string found;
    for (const auto& [kind, count] : manifest["scrubbed"].items()) {
      if (count != 0)
        found += fmt::format("{}{} {}", found.empty() ? "" : ", ", count.dump(), kind);
    }
    text += fmt::format("replaced: {}\n", found.empty() ? "nothing" : found);
  }
  std::string missing;
  for (const auto& what : manifest["coverage"]["missing"]) {
    missing += (missing.empty() ? "" : ", ") + what.get<std::string>();
  }
  text += fmt::format("vocabulary: {:.1f} % of the ids\nmissing: {}\n",
                      100 * manifest["coverage"]["vocabulary"].get<double>(),
                      missing.empty() ? "nothing" : missing);
  if (manifest["separation"].is_object()) {
    text += fmt::format("shared with the evaluations: {} tokens, largest likeness {:.2f}\n",
                        manifest["separation"]["shared_tokens"].get<int64_t>(),
                        manifest["separation"]["largest_likeness"].get<double>());
  }
  return text + describe_experts(calibration);
}

/// Returns what a manifest says of a scrubber's report: nothing that is in it.
std::string report_record(const std::string& path) {
  if (path.empty()) return "";
  const std::string report = read_text_file(path, kMaxSourceBytes);
  return nlohmann::ordered_json({{"name", fs::path(path).filename().string()},
                                 {"bytes", report.size()},
                                 {"sha256", vitrine::sha256_of_text(report)}})
      .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void write_importance(const CalibrateArguments& arguments,
                      const std::vector<std::vector<int32_t>>& texts) {
  size_t longest = 0;
  for (const std::vector<int32_t>& text : texts) longest = std::max(longest, text.size());
  const std::string& source = arguments.calibration.empty() ? arguments.out : arguments.calibration;
  vitrine::write_importance_matrix(
      arguments.importance,
      vitrine::measure_importance(arguments.model, texts, 0, arguments.experts.is_lenient()),
      fs::path(source).filename().string(), std::ssize(texts), static_cast<int64_t>(longest));
}

int run_calibrate(const CalibrateArguments& arguments) {
  if (!arguments.calibration.empty()) {
    if (!arguments.texts.empty() || !arguments.out.empty() || arguments.importance.empty()) {
      refuse(
          "--calibration is a file that was made before; expected --imatrix, and neither --text "
          "nor --out");
    }
    require_output_folder("--imatrix", arguments.importance);
    write_importance(arguments,
                     read_calibration_texts(arguments.calibration, open_model(arguments.model)));
    return 0;
  }
  if (arguments.texts.empty() || arguments.out.empty()) {
    refuse("a calibration is made of --text and written to --out; expected both");
  }
  arguments.experts.check();
  require_calendar_day("--expires", arguments.expires);
  require_output_folder("--out", arguments.out);
  if (!arguments.importance.empty()) require_output_folder("--imatrix", arguments.importance);
  const vitrine::Checkpoint checkpoint = open_model(arguments.model);
  const vitrine::ModelFacts config = vitrine::read_model_facts(checkpoint);
  const vitrine::Tokenizer tokenizer = open_tokenizer(checkpoint, config);
  vitrine::CalibrationRequest request;
  SourceReader reader(checkpoint);
  const auto read_all = [&](const std::vector<std::string>& paths, auto& to) {
    for (const std::string& path : paths) {
      for (const std::string& file : files_of(path)) to.push_back(reader.read(file));
    }
  };
  read_all(arguments.texts, request.sources);
  read_all(arguments.evaluations, request.evaluations);
  request.tokens = arguments.tokens;
  request.window = std::min(arguments.window, config.max_position_embeddings);
  request.context = config.max_position_embeddings;
  request.scrubs = !arguments.no_scrubbing;
  request.licence = arguments.licence;
  request.purpose = arguments.purpose;
  request.retention = arguments.retention;
  request.version = arguments.version;
  request.expires = arguments.expires;
  request.scrubber_report = report_record(arguments.scrubber_report);
  arguments.experts.prepare(arguments.model, request);
  catch_interrupts();
  request.progress = [](const std::string&) {
    stop_if_interrupted("calibrate: cancelled before the end; nothing was written");
  };
  const std::string digest = vitrine::sha256_of_text(checkpoint.tokenizer_json());
  vitrine::CalibrationTexts calibration = vitrine::make_calibration(tokenizer, digest, request);
  arguments.experts.measure(arguments.model, calibration);
  vitrine::write_calibration(arguments.out, calibration);
  if (!arguments.importance.empty()) write_importance(arguments, calibration.texts);
  write_out(describe(calibration, arguments.out));
  return 0;
}

}  // namespace

void add_calibrate(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<CalibrateArguments>();
  CLI::App* calibrate =
      app.add_subcommand("calibrate", "Makes a calibration for `quantize` from texts");
  add_model(*calibrate, arguments->model);
  calibrate
      ->add_option("--text", arguments->texts,
                   "files and folders: texts, or .jsonl files with a prompt or a conversation a "
                   "line, which the model's chat template writes")
      ->check(not_empty());
  calibrate->add_option("--out", arguments->out, "file to make")->check(not_empty());
  calibrate->add_option("--tokens", arguments->tokens, "how many to take at most")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::Range(int64_t{1}, kMostTokens))
      ->capture_default_str();
  calibrate->add_option("--window", arguments->window, "tokens of a context at most")
      ->check(CLI::Range(int64_t{8}, int64_t{1} << 20))
      ->capture_default_str();
  calibrate->add_option("--evaluation", arguments->evaluations,
                        "texts that the model will be evaluated on: it is refused where they share "
                        "more than 0.1 % of the calibration's tokens in runs of 13");
  calibrate->add_option("--calibration", arguments->calibration,
                        "a file of this command in place of --text and --out, for --imatrix");
  calibrate->add_option(
      "--imatrix", arguments->importance,
      "file to make besides, as llama-imatrix does: the mean squares of what each "
      "matrix of the model is multiplied with; a name that ends in .dat has the older "
      "form, which ik_llama.cpp reads");
  calibrate->add_flag("--no-scrubbing", arguments->no_scrubbing,
                      "leave e-mail addresses, IBANs, card and telephone numbers, IP addresses and "
                      "keys in the texts");
  for (const auto& [name, value, help] :
       {std::tuple("--licence", &arguments->licence, "of the texts, for the manifest"),
        std::tuple("--purpose", &arguments->purpose, "they may be used for, for the manifest"),
        std::tuple("--retention", &arguments->retention,
                   "how long they are kept, for the manifest"),
        std::tuple("--corpus-version", &arguments->version, "of the corpus, for the manifest"),
        std::tuple("--expires", &arguments->expires,
                   "last day on which it holds, as 2027-06-30, for the manifest"),
        std::tuple("--scrubber-report", &arguments->scrubber_report,
                   "file on what another scrubber found in the texts: the manifest has its name, "
                   "size and SHA-256")}) {
    calibrate->add_option(name, *value, help)->check(not_empty());
  }
  arguments->experts.add_to(*calibrate);
  calibrate->callback(
      [arguments, &command] { command = [arguments] { return run_calibrate(*arguments); }; });
}

}  // namespace cli

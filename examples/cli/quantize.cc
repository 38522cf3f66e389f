// SPDX-License-Identifier: Apache-2.0
// vitrine quantize: a smaller checkpoint from a checkpoint, with a manifest.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "calibration_texts.h"
#include "closing_note.h"
#include "common.h"
#include "quantize_adapters.h"
#include "quantize_evidence.h"
#include "quantize_gate.h"
#include "quantize_gguf.h"
#include "quantize_progress.h"
#include "text_file.h"
#include "vitrine/compress.h"
#include "vitrine/quality.h"
#include "vitrine/version.h"

namespace cli {

namespace {

constexpr uint64_t kQuantizeMaxTextBytes = uint64_t{64} << 20;
constexpr int64_t kEvaluationWindow = 1024;

struct QuantizeArguments {
  std::string model, out, scheme, text;
  std::string method = "rtn", calibration;
  int group_size = 32;
  int eval_tokens = 0;
  double least_reached = 0, smoothing = 0;
  bool keep_head = false, by_use = false, begins_anew = false;
  bool lenient_weights = false;
  QuantizeGate gate;
  QuantizeEvidence evidence;
  QuantizeAdapters adapters;
  GgufArguments gguf;
};

/// The source model and a text's ids, ready before anything is quantized: a bad text or a model
/// that cannot run ends the command at once.
struct Evaluation {
  std::unique_ptr<vitrine::Engine> source;
  std::vector<int32_t> ids;
  int64_t window = 0;
  bool is_lenient = false;  // --lenient-weights
  std::string text_name, text_sha256;
};

vitrine::EngineOptions evaluation_options(int64_t window, bool is_lenient) {
  vitrine::EngineOptions options;
  options.lenient_weights = is_lenient;
  options.kv_codecs = {"f32"};  // of the two models, weights alone differ
  return vitrine::scoring_options(window, options);
}

Evaluation prepare_evaluation(const QuantizeArguments& arguments,
                              const vitrine::Checkpoint& checkpoint) {
  const std::string text = read_text_file(arguments.text, kQuantizeMaxTextBytes);
  const vitrine::ModelFacts config = vitrine::read_model_facts(checkpoint);
  const vitrine::Tokenizer tokenizer = open_tokenizer(checkpoint, config);
  Evaluation evaluation;
  evaluation.ids = tokenizer.encode(text, true, &interrupt_flag());
  if (evaluation.ids.size() < 2) {
    refuse(fmt::format("--eval {}: {} tokens; expected at least 2", arguments.text,
                       evaluation.ids.size()));
  }
  if (arguments.eval_tokens > 0) {
    evaluation.ids.resize(
        std::min(evaluation.ids.size(), static_cast<size_t>(arguments.eval_tokens)));
  }
  evaluation.window = std::min<int64_t>(config.max_position_embeddings, kEvaluationWindow);
  evaluation.text_name = std::filesystem::path(arguments.text).filename().string();
  evaluation.text_sha256 = vitrine::sha256_of_text(text);
  evaluation.is_lenient = arguments.lenient_weights;
  evaluation.source = vitrine::Engine::load(
      arguments.model, evaluation_options(evaluation.window, evaluation.is_lenient));
  return evaluation;
}

/// Runs the model that was made over the text beside its source. Throws kCancelled after Ctrl-C.
vitrine::QuantizeEvaluation evaluate(const Evaluation& evaluation, const std::string& folder) {
  const auto result =
      vitrine::Engine::load(folder, evaluation_options(evaluation.window, evaluation.is_lenient));
  vitrine::WindowOptions options;
  options.window = evaluation.window;
  options.before_step = [] { stop_if_interrupted("evaluation: cancelled before the end"); };
  const vitrine::ModelComparison comparison =
      vitrine::compare_models(*evaluation.source, *result, evaluation.ids, options);
  vitrine::QuantizeEvaluation found;
  found.text_name = evaluation.text_name;
  found.text_sha256 = evaluation.text_sha256;
  found.num_tokens = std::ssize(comparison.tokens);
  found.source_perplexity = comparison.first_perplexity;
  found.result_perplexity = comparison.second_perplexity;
  found.mean_kl = comparison.mean_kl;
  return found;
}

/// Bytes in the files by module: its weight with scales and zero points.
std::map<std::string, uint64_t> bytes_by_module(const vitrine::Checkpoint& checkpoint) {
  std::map<std::string, uint64_t> bytes;
  for (const vitrine::TensorInfo& tensor : checkpoint.tensors()) {
    bytes[tensor.name.substr(0, tensor.name.rfind('.'))] += tensor.stored_bytes;
  }
  return bytes;
}

/// Prints the matrices that were quantized and take as much as before, or more.
void list_what_did_not_shrink(const vitrine::QuantizeReport& report,
                              const std::map<std::string, uint64_t>& before,
                              const std::map<std::string, uint64_t>& after) {
  constexpr size_t kMaxListed = 20;
  std::vector<std::string> lines;
  for (const vitrine::QuantizedTensorReport& matrix : report.quantized) {
    const auto was = before.find(matrix.name), is = after.find(matrix.name);
    if (was == before.end() || is == after.end() || is->second < was->second) continue;
    lines.push_back(fmt::format("not smaller: {} ({} to {})\n", matrix.name,
                                format_bytes(was->second), format_bytes(is->second)));
  }
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), kMaxListed); ++i) text += lines[i];
  if (lines.size() > kMaxListed) {
    text += fmt::format("not smaller: {} more\n", lines.size() - kMaxListed);
  }
  write_out(text);
}

/// Names what takes more than before, the largest first, where all of it does.
void warn_of_growth(const vitrine::Checkpoint& source, const std::string& out,
                    const vitrine::QuantizeReport& report) {
  constexpr size_t kMaxNamed = 3;
  const auto before = bytes_by_module(source);
  const auto after = bytes_by_module(vitrine::Checkpoint::open(out));
  list_what_did_not_shrink(report, before, after);
  uint64_t source_bytes = 0, result_bytes = 0;
  std::vector<std::pair<uint64_t, std::string>> grown;
  for (const auto& [name, bytes] : before) source_bytes += bytes;
  for (const auto& [name, bytes] : after) {
    result_bytes += bytes;
    const auto found = before.find(name);
    const uint64_t was = found == before.end() ? 0 : found->second;
    if (bytes <= was) continue;
    grown.emplace_back(
        bytes - was,
        was == 0 ? fmt::format("{} (new, {})", name, format_bytes(bytes))
                 : fmt::format("{} ({} to {})", name, format_bytes(was), format_bytes(bytes)));
  }
  if (result_bytes <= source_bytes) return;
  std::ranges::stable_sort(grown, std::greater(), &std::pair<uint64_t, std::string>::first);
  std::string names;
  for (size_t i = 0; i < std::min(grown.size(), kMaxNamed); ++i) {
    names += (i == 0 ? "" : ", ") + grown[i].second;
  }
  if (grown.size() > kMaxNamed) names += fmt::format(" and {} more", grown.size() - kMaxNamed);
  const bool has_blocks = std::ranges::any_of(
      source.tensors(), [](const auto& tensor) { return tensor.block_format != nullptr; });
  write_note(fmt::format("warning: {} takes {}, more than the {} of {}; what grew: {}{}", out,
                         format_bytes(result_bytes), format_bytes(source_bytes), source.path(),
                         names,
                         has_blocks ? "; the source is quantized already and runs as it is" : ""));
}

/// Says how many matrices went by the texts, and by how much of them.
std::string describe_calibration(const vitrine::QuantizeReport& report) {
  size_t reached = 0, shrunk = 0;
  int64_t fewest = std::numeric_limits<int64_t>::max();
  double most = 0;
  for (const vitrine::QuantizedTensorReport& tensor : report.quantized) {
    if (tensor.calibration_rows == 0) continue;
    ++reached;
    shrunk += tensor.shrinkage > 0 ? 1 : 0;
    fewest = std::min(fewest, tensor.calibration_rows);
    most = std::max(most, tensor.shrinkage);
  }
  std::string text =
      fmt::format("{} of {} matrices by the calibration, the others rounded to the nearest\n",
                  reached, report.quantized.size());
  if (reached > 0) text += fmt::format("fewest rows of a matrix: {}\n", fewest);
  if (shrunk > 0) {
    text += fmt::format("{} of experts with rows of all tokens, at most {:.0f} %\n", shrunk,
                        100 * most);
  }
  return text;
}

std::string describe(const QuantizeArguments& arguments, const vitrine::QuantizeReport& report) {
  double worst = 0;
  std::string worst_name;
  for (const vitrine::QuantizedTensorReport& tensor : report.quantized) {
    if (tensor.worst_absolute_error < worst) continue;
    worst = tensor.worst_absolute_error;
    worst_name = tensor.name;
  }
  const int group_size = report.quantized.empty() ? 0 : report.quantized.front().group_size;
  std::string text = fmt::format(
      "{}: {} to {}; {} matrices quantized ({}, {}), {} tensors left as they are\n", arguments.out,
      format_bytes(report.source_bytes), format_bytes(report.result_bytes), report.quantized.size(),
      arguments.scheme, group_size == 0 ? "a scale a row" : fmt::format("groups of {}", group_size),
      report.unquantized.size());
  if (!arguments.calibration.empty()) text += describe_calibration(report);
  if (report.layers_taken_up > 0) {
    text += fmt::format("{} layers taken from an earlier run\n", report.layers_taken_up);
  }
  if (!worst_name.empty()) text += fmt::format("worst error {:.5f} in {}\n", worst, worst_name);
  for (const vitrine::UnquantizedTensorReport& tensor : report.unquantized) {
    if (tensor.reason.starts_with("the group")) {
      text += fmt::format("left as it is: {} ({})\n", tensor.name, tensor.reason);
    }
  }
  if (report.evaluation) {
    text += fmt::format(
        "{} tokens of {}: perplexity {:.3f} before, {:.3f} after; mean KL {:.5f} nats\n",
        report.evaluation->num_tokens, report.evaluation->text_name,
        report.evaluation->source_perplexity, report.evaluation->result_perplexity,
        report.evaluation->mean_kl);
  }
  return text;
}

int run_quantize(QuantizeArguments& arguments) {
  if (arguments.out.ends_with(".gguf")) {
    if (!arguments.scheme.empty())
      refuse(fmt::format("{}: --scheme makes a folder; expected --type for a .gguf file",
                         arguments.out));
    if (arguments.evidence.is_given()) {
      refuse(
          fmt::format("{}: --seal and --expires are of a folder's manifest, and a .gguf file has "
                      "none; expected neither",
                      arguments.out));
    }
    return arguments.gguf.run(arguments.model, arguments.out, arguments.lenient_weights);
  }
  if (arguments.gguf.is_given()) {
    refuse(
        fmt::format("--type, --imatrix and --pure are for .gguf files; {} is none", arguments.out));
  }
  if (arguments.by_use && !arguments.scheme.starts_with("mixed:")) {
    refuse(fmt::format("--by-use is of --scheme mixed:BITS; {} has no budget", arguments.scheme));
  }
  if (arguments.smoothing > 0 && arguments.method != "smoothquant") {
    refuse(fmt::format("--smoothing is of --method smoothquant; {} smooths nothing",
                       arguments.method));
  }
  if (arguments.scheme.empty()) refuse("--scheme is missing; expected what the matrices become");
  if (arguments.out.ends_with(".safetensors")) {
    refuse(
        fmt::format("{}: quantize makes a folder (config.json, model.safetensors, …), or a .gguf "
                    "file; expected a name of either",
                    arguments.out));
  }
  const vitrine::Checkpoint checkpoint = open_model(arguments.model);
  if (!checkpoint.tokenizer_json().empty()) {
    open_tokenizer(checkpoint, vitrine::read_model_facts(checkpoint));
  }
  // Nobody could load what came of another.
  vitrine::Engine::check(arguments.model, arguments.lenient_weights);
  catch_interrupts();
  vitrine::QuantizeOptions options;
  options.scheme = arguments.scheme;
  options.group_size = arguments.group_size;
  options.quantize_head = !arguments.keep_head;
  options.method = arguments.method;
  options.least_reached = arguments.least_reached;
  options.smoothing = arguments.smoothing;
  options.mixed_by_use = arguments.by_use;
  options.lenient_weights = arguments.lenient_weights;
  if (!arguments.calibration.empty()) {
    options.calibration = read_calibration_texts(arguments.calibration, checkpoint);
    // The source is mapped meanwhile: one that somebody truncates ends the command with a message.
    static const vitrine::MappedFileGuard guard;
  }
  arguments.evidence.prepare(arguments.model, arguments.calibration);
  options.tool_version = VITRINE_VERSION;
  options.instruction_set = vitrine::cpu_instruction_set();
  options.keep_layers = !arguments.begins_anew;
  QuantizeLine line(options.keep_layers && !options.calibration.empty());
  options.progress = [&line](const vitrine::QuantizeProgress& progress) { line.show(progress); };
  std::optional<Evaluation> evaluation;
  if (!arguments.text.empty()) {
    evaluation = prepare_evaluation(arguments, checkpoint);
    options.instruction_set = evaluation->source->summary().isa;
  }
  AdapterText adapter_text;
  if (arguments.adapters.is_wanted()) {
    if (!evaluation) refuse("--adapter compares models on a text; expected --eval");
    adapter_text = {arguments.model, evaluation->ids, evaluation->window,
                    evaluation_options(evaluation->window, evaluation->is_lenient)};
    arguments.adapters.prepare(adapter_text);
  }
  QuantizeGate& gate = arguments.gate;
  if (gate.is_wanted()) gate.prepare(arguments.model, arguments.out);
  if (evaluation || gate.is_wanted()) {
    options.evaluate = [&](const std::string& folder) {
      line.clear();
      std::optional<vitrine::QuantizeEvaluation> found;
      if (evaluation) found = evaluate(*evaluation, folder);
      if (arguments.adapters.is_wanted()) arguments.adapters.compare(adapter_text, folder);
      if (gate.is_wanted()) gate.check(folder);
      return found;
    };
  }
  options.facts = [&](const std::string&) {
    nlohmann::ordered_json facts = arguments.evidence.facts();
    facts["gate"] = gate.record();
    facts["adapters"] = arguments.adapters.record();
    return facts.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  };
  options.finish = [&](const std::string& folder) { arguments.evidence.seal(folder); };
  vitrine::QuantizeReport report;
  try {
    report = vitrine::quantize_checkpoint(arguments.model, arguments.out, options);
  } catch (const GateRefused& refused) {
    write_note(refused.what());
    return 3;
  }
  line.clear();
  write_out(describe(arguments, report) + arguments.adapters.describe());
  warn_of_growth(checkpoint, arguments.out, report);
  return gate.exit_code();
}

}  // namespace

void add_quantize(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<QuantizeArguments>();
  CLI::App* quantize = app.add_subcommand("quantize", "Makes a smaller checkpoint");
  add_model(*quantize, arguments->model);
  quantize->add_option("out", arguments->out, "folder, or .gguf file, to make")
      ->check(not_empty())
      ->required();
  quantize->add_option(
      "--scheme", arguments->scheme,
      "of a folder: int8, int4, int3, each also -asymmetric; fp8, mxfp4, nvfp4; with "
      "activations of 8 bits int8-w8a8, int8-w8a8-static, fp8-dynamic, fp8-static; or "
      "mixed:BITS, mixed:BITS:experts, int3 to int8 by a calibration");
  quantize
      ->add_option("--method", arguments->method,
                   "rtn; or, by a calibration, gptq, awq, or smoothquant (for 8-bit activations)")
      ->capture_default_str();
  quantize->add_flag("--by-use", arguments->by_use,
                     "mixed:BITS counts the bytes that a token reads, not those of the file");
  quantize
      ->add_option("--smoothing", arguments->smoothing,
                   "exponent of smoothquant; 0: the best for each norm")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  quantize->add_option("--calibration", arguments->calibration,
                       "file of `vitrine calibrate`: what goes through the model while its layers "
                       "are quantized");
  quantize
      ->add_option("--least-reached", arguments->least_reached,
                   "share of the layers' matrices that the calibration must reach")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  quantize
      ->add_option("--group-size", arguments->group_size,
                   "columns that share a scale: 32, 64 or 128 (of integers)")
      ->capture_default_str();
  quantize->add_flag("--no-resume", arguments->begins_anew,
                     "of a calibration: take up no layers that a run before has kept, and keep "
                     "none");
  quantize->add_flag("--keep-head", arguments->keep_head, "leave the output head as it is");
  quantize->add_option(
      "--eval", arguments->text,
      "text file: the manifest records both perplexities and the mean KL on it (keys and "
      "values in float32)");
  quantize
      ->add_option("--eval-tokens", arguments->eval_tokens,
                   "how much of the text at most (default: all)")
      ->check(CLI::Range(2, 1 << 30));
  add_lenient_weights(*quantize, arguments->lenient_weights);
  arguments->gguf.add_to(*quantize);
  arguments->gate.add_to(*quantize);
  arguments->evidence.add_to(*quantize);
  arguments->adapters.add_to(*quantize);
  add_quiet(*quantize);
  quantize->callback(
      [arguments, &command] { command = [arguments] { return run_quantize(*arguments); }; });
}

}  // namespace cli

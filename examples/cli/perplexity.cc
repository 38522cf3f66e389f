// SPDX-License-Identifier: Apache-2.0
// vitrine perplexity: how well a model predicts a text, and how far it is from another model's
// log-probabilities, in the form that llama-perplexity's users know.
#include "vitrine/perplexity.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "common.h"
#include "lora_options.h"
#include "text_file.h"

namespace cli {

namespace {

constexpr size_t kMostTextBytes = size_t{256} << 20;
constexpr int kRows = 256;  // of logits in a step
constexpr size_t kLeastCompared = 2;

struct PerplexityArguments {
  std::string model, file, text, base;
  int64_t context = 0, chunks = 0, stride = 0;  // context 0: as the base has it, or 512
  bool compares = false, scores_all = false, json = false, quiet = false;
  DeviceOptions device;
};

/// What is scored, and how.
struct Plan {
  std::vector<int32_t> ids;
  vitrine::ChunkOptions chunks;
  size_t num_chunks = 0;
};

/// A number for JSON: none where it is not finite.
nlohmann::ordered_json number_json(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}
nlohmann::ordered_json estimate_json(const vitrine::Estimate& estimate) {
  return {{"mean", number_json(estimate.mean)},
          {"standard_error", number_json(estimate.standard_error)}};
}

// As llama.cpp reads it: the line's end at the file's end is none of the text, and what spells a
// special token is text.
std::vector<int32_t> encode_text(const PerplexityArguments& arguments,
                                 const vitrine::Tokenizer& tokenizer) {
  std::string text =
      arguments.file.empty() ? arguments.text : read_text_file(arguments.file, kMostTextBytes);
  if (!arguments.file.empty() && text.ends_with('\n')) text.pop_back();
  return tokenizer.encode_guarded(tokenizer.guard_special_tokens(text), true);
}

void check_arguments(const PerplexityArguments& arguments) {
  if (arguments.stride != 0) {
    refuse("--ppl-stride is not taken: chunks do not overlap here; expected it to be left out");
  }
  if (arguments.compares && arguments.base.empty()) {
    refuse(
        "--kl-divergence needs the base's log-probabilities; expected --kl-divergence-base FILE");
  }
  const bool has_text = !arguments.file.empty() || !arguments.text.empty();
  if (!arguments.compares && !has_text) refuse("there is no text; expected -f FILE or -p TEXT");
  if (!arguments.base.empty() && arguments.scores_all) {
    refuse(
        "--all-tokens and --kl-divergence-base: its file has the second half of each chunk; "
        "expected one of them");
  }
  if (arguments.compares && arguments.context != 0) {
    refuse(
        "-c and --kl-divergence: the base's file says how long chunks are; expected one of them");
  }
}

Plan plan_base(const PerplexityArguments& arguments, const vitrine::LogprobFileHead& head) {
  Plan plan;
  plan.ids = head.ids;
  plan.chunks.context = head.context;
  plan.chunks.most_chunks =
      std::min(head.chunks, arguments.chunks > 0 ? arguments.chunks : head.chunks);
  return plan;
}

/// Writes llama-perplexity's "[1]4.3210,[2]…" as chunks end.
class ChunkLine {
 public:
  explicit ChunkLine(bool is_shown) : is_shown_(is_shown) {}
  void add(const vitrine::ChunkToken& token, const vitrine::TokenLosses& losses) {
    if (token.chunk != chunk_) end_chunk();
    chunk_ = token.chunk;
    so_far_ = losses;
  }
  const std::vector<double>& finish() {
    end_chunk();
    if (is_shown_) write_out("\n");
    return perplexities_;
  }

 private:
  void end_chunk() {
    perplexities_.push_back(so_far_.perplexity().mean);
    if (is_shown_) write_out(fmt::format("[{}]{:.4f},", chunk_ + 1, perplexities_.back()));
  }
  const bool is_shown_;
  size_t chunk_ = 0;
  vitrine::TokenLosses so_far_;
  std::vector<double> perplexities_;  // of all tokens up to each chunk's end
};

std::string report_text(const vitrine::DivergenceReport& report) {
  std::string text;
  const auto line = [&](const char* name, const vitrine::Estimate& value) {
    text += fmt::format("{:<30}: {:10.6f} ± {:10.6f}\n", name, value.mean, value.standard_error);
  };
  text += "====== Perplexity statistics ======\n";
  line("Mean PPL(Q)", report.perplexity);
  line("Mean PPL(base)", report.base_perplexity);
  text +=
      fmt::format("{:<30}: {:6.2f}%\n", "Cor(ln(PPL(Q)), ln(PPL(base)))", 100 * report.correlation);
  line("Mean ln(PPL(Q)/PPL(base))", report.log_ratio);
  line("Mean PPL(Q)/PPL(base)", report.ratio);
  line("Mean PPL(Q)-PPL(base)", report.difference);
  text += "\n====== KL divergence statistics ======\n";
  text +=
      fmt::format("Mean    KLD: {:10.6f} ± {:10.6f}\n", report.kl.mean, report.kl.standard_error);
  const auto kl = [&](const char* name, double fraction) {
    text += fmt::format("{:<7} KLD: {:10.6f}\n", name, vitrine::quantile(report.kls, fraction));
  };
  kl("Maximum", 1);
  for (const double percent : {99.9, 99.0, 95.0, 90.0}) {
    kl(fmt::format("{:.1f}%", percent).c_str(), percent / 100);
  }
  kl("Median", 0.5);
  for (const double percent : {10.0, 5.0, 1.0, 0.1}) {
    kl(fmt::format("{:4.1f}%", percent).c_str(), percent / 100);
  }
  kl("Minimum", 0);
  text += "\n====== Token probability statistics ======\n";
  const auto share = [&](const char* name, const vitrine::Estimate& value) {
    text += fmt::format("{}: {:6.3f} ± {:5.3f} %\n", name, 100 * value.mean,
                        100 * value.standard_error);
  };
  share("Mean    Δp", report.delta_p);
  const auto delta = [&](const char* name, double fraction) {
    text += fmt::format("{:<7} Δp: {:6.3f}%\n", name,
                        100 * vitrine::quantile(report.delta_ps, fraction));
  };
  delta("Maximum", 1);
  for (const double percent : {99.9, 99.0, 95.0, 90.0, 75.0}) {
    delta(fmt::format("{:.1f}%", percent).c_str(), percent / 100);
  }
  delta("Median", 0.5);
  for (const double percent : {25.0, 10.0, 5.0, 1.0, 0.1}) {
    delta(fmt::format("{:4.1f}%", percent).c_str(), percent / 100);
  }
  delta("Minimum", 0);
  share("RMS Δp    ", report.rms_delta_p);
  share("Same top p", report.same_best);
  return text;
}

nlohmann::ordered_json report_json(const vitrine::DivergenceReport& report) {
  nlohmann::ordered_json kls, deltas;
  for (const double percent :
       {0.0, 0.1, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0}) {
    const std::string name = fmt::format("{}", percent);
    kls[name] = vitrine::quantile(report.kls, percent / 100);
    deltas[name] = vitrine::quantile(report.delta_ps, percent / 100);
  }
  return {{"tokens", report.num_tokens},
          {"base_perplexity", estimate_json(report.base_perplexity)},
          {"correlation", number_json(report.correlation)},
          {"log_ratio", estimate_json(report.log_ratio)},
          {"ratio", estimate_json(report.ratio)},
          {"difference", estimate_json(report.difference)},
          {"kl", estimate_json(report.kl)},
          {"kl_percentiles", kls},
          {"delta_p", estimate_json(report.delta_p)},
          {"delta_p_percentiles", deltas},
          {"rms_delta_p", estimate_json(report.rms_delta_p)},
          {"same_best", estimate_json(report.same_best)}};
}

int run_perplexity(const PerplexityArguments& arguments) {
  check_arguments(arguments);
  vitrine::EngineOptions engine_options = arguments.device.engine_options();
  engine_options.cancelled = &interrupt_flag();
  const bool writes_base = !arguments.base.empty() && !arguments.compares;
  if (writes_base) require_output_folder("--kl-divergence-base", arguments.base);
  catch_interrupts();
  std::optional<vitrine::LogprobFileReader> base;
  const vitrine::Tokenizer tokenizer = vitrine::open_tokenizer(open_model(arguments.model));
  Plan plan;
  if (arguments.compares) {
    base.emplace(arguments.base);
    plan = plan_base(arguments, base->head());
  } else {
    plan.ids = encode_text(arguments, tokenizer);
    plan.chunks.context = arguments.context > 0 ? arguments.context : 512;
    plan.chunks.most_chunks = arguments.chunks;
    plan.chunks.scores_all = arguments.scores_all;
  }
  // Each chunk begins with the token that texts of this vocabulary begin with, where there is one.
  const std::vector<int32_t> begin = tokenizer.encode("", true);
  if (!begin.empty()) plan.chunks.begin_token = begin.front();
  plan.chunks.before_step = [] { stop_if_interrupted("perplexity: cancelled before the end"); };
  plan.num_chunks = vitrine::count_chunks(plan.ids.size(), plan.chunks);

  const auto engine = vitrine::Engine::load(
      arguments.model, vitrine::scoring_options(plan.chunks.context, engine_options, kRows));
  const auto vocab_size = static_cast<size_t>(engine->summary().vocab_size);
  if (base && base->head().vocab_size != static_cast<int64_t>(vocab_size)) {
    refuse(
        fmt::format("{}: a vocabulary of {} tokens, and that of {} has {}; expected models of "
                    "one tokenizer",
                    arguments.base, base->head().vocab_size, arguments.model, vocab_size));
  }
  std::optional<vitrine::LogprobFileWriter> writer;
  if (writes_base) {
    const size_t used = plan.num_chunks * static_cast<size_t>(plan.chunks.context);
    writer.emplace(arguments.base,
                   vitrine::LogprobFileHead{
                       plan.chunks.context,
                       static_cast<int64_t>(vocab_size),
                       static_cast<int64_t>(plan.num_chunks),
                       {plan.ids.begin(), plan.ids.begin() + static_cast<ptrdiff_t>(used)}});
  }
  ChunkLine line(!arguments.json && !arguments.quiet);
  vitrine::TokenLosses losses;
  std::vector<vitrine::DivergedToken> diverged;
  std::vector<float> base_logprobs(base ? vocab_size : 0);
  vitrine::score_chunks(*engine, plan.ids, plan.chunks, [&](const vitrine::ChunkToken& token) {
    if (base) {
      base->next(base_logprobs);
      diverged.push_back(vitrine::compare_with_base(token.logits, base_logprobs, token.token));
    }
    if (writer) writer->add(token.logits);
    losses.add(token.logprob);
    line.add(token, losses);
  });
  const std::vector<double>& perplexities = line.finish();
  if (writer) writer->finish();
  const vitrine::Estimate perplexity = losses.perplexity();
  std::optional<vitrine::DivergenceReport> report;
  if (diverged.size() >= kLeastCompared) report = vitrine::divergence_report(diverged);
  if (arguments.json) {
    nlohmann::ordered_json json = {{"model", arguments.model},
                                   {"context", plan.chunks.context},
                                   {"chunks", plan.num_chunks},
                                   {"scored", plan.chunks.scores_all ? "all" : "second half"},
                                   {"tokens", losses.num_tokens()},
                                   {"perplexity", estimate_json(perplexity)},
                                   {"perplexity_by_chunk", perplexities}};
    if (report) json["divergence"] = report_json(*report);
    write_json(json);
    return 0;
  }
  if (report) {
    write_out("\n" + report_text(*report));
  } else {
    write_out(fmt::format("Final estimate: PPL = {:.4f} +/- {:.5f}\n", perplexity.mean,
                          perplexity.standard_error));
  }
  return 0;
}

}  // namespace

void add_perplexity(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<PerplexityArguments>();
  CLI::App* perplexity = app.add_subcommand(
      "perplexity", "Scores a text, and compares with another model's log-probabilities");
  add_model(*perplexity, arguments->model)->required();
  auto* file = perplexity->add_option("-f,--file", arguments->file, "the text; - is standard input")
                   ->check(not_empty());
  perplexity->add_option("-p,--prompt", arguments->text, "the text itself")->excludes(file);
  perplexity
      ->add_option("-c,--context", arguments->context,
                   "tokens of a chunk; each begins anew (default: 512)")
      ->check(CLI::Range(4, 1 << 24));
  perplexity->add_option("--chunks", arguments->chunks, "only the first so many")
      ->check(CLI::Range(1, 1 << 24));
  perplexity->add_flag("--all-tokens", arguments->scores_all,
                       "score each token but a chunk's first (default: those of its second half)");
  perplexity
      ->add_option("--kl-divergence-base", arguments->base,
                   "log-probabilities in llama-perplexity's form: they are written there, or read "
                   "with --kl-divergence")
      ->check(not_empty());
  perplexity->add_flag("--kl-divergence", arguments->compares,
                       "compare with those of --kl-divergence-base, whose text it has");
  perplexity->add_option("--ppl-stride", arguments->stride)->group("");  // refused by name
  perplexity->add_flag("--json", arguments->json, "the result as JSON");
  perplexity->add_flag("-q,--quiet", arguments->quiet, "no perplexities of single chunks");
  add_lora(*perplexity, arguments->device.lora);
  arguments->device.add_to(*perplexity);
  perplexity->callback(
      [arguments, &command] { command = [arguments] { return run_perplexity(*arguments); }; });
}

}  // namespace cli

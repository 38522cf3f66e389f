// vitrine generate: text from a prompt, streamed as it is made, with the recorder on.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <optional>
#include <random>

#include "hidden_states.h"
#include "log_options.h"
#include "stream_target.h"
#include "summary.h"

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kRingBytes = size_t{4} << 20;
constexpr int kMostStepTokens = 512;
constexpr int kLogitRows = 32;  // of a pass that scores the prompt

struct Arguments {
  std::string model, prompt;
  int max_new_tokens = 128;
  // llama.cpp's defaults.
  vitrine::SamplerOptions sampler{.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f};
  std::optional<uint64_t> seed;
  LogOptions log;
  bool attribution = false;
  bool json = false, summary = false, prompt_logprobs = false, ignore_end_of_text = false;
  DeviceOptions device;
};

/// CLI11 itself would wrap -1 and cut off what is too large.
CLI::Validator check_seed() {
  return CLI::Validator(
      [](std::string& text) {
        uint64_t seed = 0;
        const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), seed);
        const bool whole = status == std::errc() && end == text.data() + text.size();
        return whole ? std::string()
                     : "'" + text + "' is no seed; expected a whole number from 0 to 2^64 - 1";
      },
      "");
}

vitrine::LogHeader log_header(const Arguments& arguments, const vitrine::ModelSummary& model,
                              const vitrine::Checkpoint& checkpoint) {
  vitrine::LogHeader header;
  header.model_path = arguments.model;
  header.architecture = model.architecture;
  header.device = model.device;
  header.kernels = model.kernels;
  header.isa = model.isa;
  header.threads = model.threads;
  header.num_layers = model.num_layers;
  header.vocab_size = model.vocab_size;
  header.seed = arguments.sampler.seed;
  header.sampler = {{"temperature", fmt::format("{}", arguments.sampler.temperature)},
                    {"top_k", fmt::format("{}", arguments.sampler.top_k)},
                    {"top_p", fmt::format("{}", arguments.sampler.top_p)},
                    {"min_p", fmt::format("{}", arguments.sampler.min_p)}};
  header.engine = {{"rope_frequencies", arguments.device.rope_frequencies},
                   {"kv_type", arguments.device.kv_type}};
  header.hashes = file_hashes(checkpoint);
  return header;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int run_generate(Arguments arguments) {
  const Clock::time_point started = Clock::now();
  arguments.sampler.seed =
      arguments.seed.value_or(uint64_t{std::random_device()()} << 32 | std::random_device()());
  vitrine::SamplerPipeline::from_options(arguments.sampler);  // refuses values out of range
  arguments.log.check();
  vitrine::EngineOptions options = arguments.device.engine_options();

  const vitrine::Checkpoint checkpoint = open_model(arguments.model);
  const vitrine::ModelConfig config = vitrine::parse_model_config(checkpoint);
  const vitrine::Tokenizer tokenizer = open_tokenizer(checkpoint, config);
  const std::vector<int32_t> prompt = tokenizer.encode(read_text_argument(arguments.prompt));
  const int64_t prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t limit = config.max_position_embeddings;
  if (prompt.empty())
    refuse("the prompt is empty; expected text (-p TEXT, or -p - and text on standard input)");
  if (prompt_tokens > limit) {
    refuse(
        fmt::format("the prompt has {} tokens and the context of {} holds {} (config, "
                    "max_position_embeddings); expected a shorter prompt",
                    prompt_tokens, arguments.model, limit));
  }

  const vitrine::AuditMode mode = arguments.log.audit_mode();
  const int64_t context = std::min(limit, prompt_tokens + arguments.max_new_tokens);
  options.max_context = static_cast<int>(context);
  options.max_step_tokens = static_cast<int>(std::min<int64_t>(prompt_tokens, kMostStepTokens));
  if (arguments.prompt_logprobs) {
    options.max_logit_rows = std::min(options.max_step_tokens, kLogitRows);
  }
  options.audit_mode = mode;
  options.attribution = arguments.attribution;
  if (!arguments.log.hidden_states.empty()) {
    options.hidden_state_layers =
        parse_hidden_layers(arguments.log.hidden_states, static_cast<int>(config.num_layers));
  }
  options.audit_level = arguments.log.audit_level();
  // Destroyed last to first: the engine before the sinks, the log before what its callbacks use.
  Summary summary;
  std::unique_ptr<Log> log;
  std::unique_ptr<vitrine::SlabRing> ring;
  std::unique_ptr<StreamTarget> target;
  std::unique_ptr<vitrine::AuditStream> stream;
  std::optional<vitrine::TeeSink> both;
  const auto engine = vitrine::Engine::load(arguments.model, options);
  const double load_seconds = seconds_since(started);

  if (!arguments.log.stream.empty()) {
    target = std::make_unique<StreamTarget>(arguments.log.stream);
  }
  catch_interrupts();  // from here on there is something to finish
  vitrine::AuditSink* sink = nullptr;
  if (!arguments.log.path.empty()) {
    log = arguments.log.open(log_header(arguments, engine->summary(), checkpoint), prompt_tokens,
                             [&tokenizer](int32_t id) {
                               return id < tokenizer.vocab_size() ? tokenizer.token_text(id)
                                                                  : std::string();
                             });
    if (arguments.summary) {
      log->on_record([&summary](const vitrine::TokenRecord& record) { summary.add(record); });
    }
    sink = &log->sink();
  } else if (mode != vitrine::AuditMode::kNone) {
    // The summary needs the records of the whole run, any other run only the last ones.
    ring = std::make_unique<vitrine::SlabRing>(arguments.summary ? 16 * kRingBytes : kRingBytes,
                                               vitrine::SlabRing::WhenFull::kOverwrite);
    sink = ring.get();
  }
  if (target) {
    stream =
        open_stream(*target, log_header(arguments, engine->summary(), checkpoint), arguments.log);
    sink = &both.emplace(*sink, stream->sink());
  }
  if (sink != nullptr) engine->set_audit_sink(sink);

  vitrine::GenerateOptions generation;
  generation.max_new_tokens = arguments.max_new_tokens;
  generation.sampler = arguments.sampler;
  generation.ignore_end_of_text = arguments.ignore_end_of_text;
  generation.prompt_logprobs = arguments.prompt_logprobs;
  vitrine::StreamDecoder decoder(tokenizer);
  std::string text;
  const auto emit = [&](const std::string& piece) {
    if (arguments.json) {
      text += piece;
    } else if (!piece.empty()) {
      write_out(piece);
    }
  };
  const auto on_token = [&](const vitrine::TokenEvent& event) {
    if (event.token < tokenizer.vocab_size()) emit(decoder.add(event.token));
    return interrupt_signal() == 0;
  };
  const vitrine::GenerateResult result = vitrine::generate(*engine, prompt, generation, on_token);
  engine->set_audit_sink(nullptr);
  emit(decoder.finish() + (arguments.json ? "" : "\n"));
  const std::string reason(vitrine::stop_reason_name(result.reason));
  if (log) log->finish(reason);
  if (stream) stream->finish(reason);

  // The prompt's pass makes the first token.
  const double steps = std::max(0.0, static_cast<double>(result.tokens.size()) - 1);
  const double tokens_per_second = result.decode_seconds > 0 ? steps / result.decode_seconds : 0;
  const std::string log_place = log ? arguments.log.path : "";
  if (arguments.json) {
    nlohmann::ordered_json json;
    json["text"] = text;
    json["tokens"] = result.tokens;
    json["reason"] = reason;
    json["prompt_tokens"] = result.prompt_tokens;
    json["seed"] = arguments.sampler.seed;
    json["timings"] = {{"load_seconds", load_seconds},
                       {"prefill_seconds", result.prefill_seconds},
                       {"decode_seconds", result.decode_seconds}};
    json["tokens_per_second"] = tokens_per_second;
    json["audit"] = log ? nlohmann::ordered_json(log_place) : nlohmann::ordered_json(nullptr);
    write_json(json);
  }
  if (arguments.summary && result.reason != vitrine::StopReason::kCancelled) {
    if (ring) {
      summary.set_overwritten(ring->overwritten());
      for (const vitrine::TokenRecord& record : ring->drain_records()) summary.add(record);
    }
    std::string table = fmt::format(
        "\nspeed       {:.0f} tokens/s ({} tokens, prompt of {} in {:.1f} ms)\n", tokens_per_second,
        result.tokens.size(), result.prompt_tokens, 1000 * result.prefill_seconds);
    table += "audit cost  " + measure_overhead(*engine, mode, prompt, context) + "\n";
    if (mode != vitrine::AuditMode::kNone) table += summary.text(engine->summary(), tokenizer);
    if (log) table += "log         " + log_place + "\n";
    write_out(table);
  }
  write_note(
      fmt::format("{}: {} tokens at {:.0f} tokens/s after a prompt of {} in {:.1f} ms; seed {}; "
                  "recorder {}{}{}",
                  reason, result.tokens.size(), tokens_per_second, result.prompt_tokens,
                  1000 * result.prefill_seconds, arguments.sampler.seed, arguments.log.mode,
                  arguments.log.note(log.get()), stream_note(arguments.log.stream, stream.get())));
  return result.reason == vitrine::StopReason::kCancelled ? 128 + interrupt_signal() : 0;
}

}  // namespace

void add_generate(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* generate = app.add_subcommand("generate", "Generates text from a prompt");
  generate->add_option("model", arguments->model, "folder of the model, or a .gguf file")
      ->required();
  generate->add_option("-p,--prompt", arguments->prompt, "the prompt; - reads standard input")
      ->required();
  generate->add_option("-n,--max-new-tokens", arguments->max_new_tokens, "how many tokens at most")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  generate->add_option("--temperature", arguments->sampler.temperature, "0: greedy")
      ->capture_default_str();
  generate->add_option("--top-k", arguments->sampler.top_k, "0: off")->capture_default_str();
  generate->add_option("--top-p", arguments->sampler.top_p, "1: off")->capture_default_str();
  generate->add_option("--min-p", arguments->sampler.min_p, "0: off")->capture_default_str();
  generate->add_option("--seed", arguments->seed, "default: a random one, which --json tells")
      ->check(check_seed());
  arguments->log.add_to(*generate);
  generate->add_flag("--attribution", arguments->attribution,
                     "the log splits each token's logit into what every part of the model added");
  generate->add_flag("--prompt-logprobs", arguments->prompt_logprobs,
                     "record the log-probabilities of the prompt's tokens too");
  generate->add_flag("--ignore-end-of-text", arguments->ignore_end_of_text,
                     "go on after an end-of-text token");
  generate->add_flag("--summary", arguments->summary, "end with a table of what the recorder saw");
  generate->add_flag("--json", arguments->json, "one JSON object instead of text");
  arguments->device.add_to(*generate);
  generate->callback(
      [arguments, &command] { command = [arguments] { return run_generate(*arguments); }; });
}

}  // namespace cli

// SPDX-License-Identifier: Apache-2.0
// vitrine chat: a conversation, line by line, with the recorder on.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>

#include "answer_experts.h"
#include "candidates.h"
#include "chat_prompt.h"
#include "constraint_options.h"
#include "failure_text.h"
#include "log_options.h"
#include "sampling_options.h"
#include "vitrine/audit_stream.h"

namespace cli {

namespace {

using vitrine::Error;
using vitrine::ErrorKind;

constexpr size_t kRingBytes = size_t{64} << 20;
constexpr size_t kMaxLineBytes = size_t{16} << 20;
constexpr int kMaxStepTokens = 512;
constexpr int kDefaultContext = 4096;
constexpr size_t kMaxExpertsShown = 8;

struct Arguments {
  std::string model;
  int max_new_tokens = 512;
  int context = 0;
  SamplingOptions sampling;
  ConstraintOptions constraint;
  LogOptions log;
  ChatPromptOptions chat_prompt;
  DeviceOptions device;
};

/// Standard input, line by line.
class LineReader {
 public:
  /// False at the end, or where a signal arrived.
  bool read(std::string& line) {
    line.clear();
    while (true) {
      const size_t end = buffer_.find('\n');
      if (end != std::string::npos) {
        line.append(buffer_, 0, end);
        buffer_.erase(0, end + 1);
        return true;
      }
      line += buffer_;
      buffer_.clear();
      if (line.size() > kMaxLineBytes) {
        refuse(fmt::format("a line on standard input is longer than {}; expected a message",
                           format_bytes(kMaxLineBytes)));
      }
      char bytes[1 << 16];
      const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof(bytes));
      if (count < 0 && errno == EINTR && interrupt_signal() == 0) continue;
      if (count < 0 && errno == EINTR) return false;
      if (count < 0) {
        throw Error(ErrorKind::kIo, fmt::format("standard input: {}; expected messages there",
                                                std::strerror(errno)));
      }
      if (count == 0) return !line.empty();
      buffer_.assign(bytes, static_cast<size_t>(count));
    }
  }

 private:
  std::string buffer_;
};

class Conversation {
 public:
  explicit Conversation(Arguments& arguments)
      : arguments_(arguments),
        checkpoint_(open_model(arguments.model)),
        config_(vitrine::parse_model_config(checkpoint_)),
        tokenizer_(open_tokenizer(checkpoint_, config_)),
        chat_(open_chat_template(checkpoint_, arguments.chat_prompt)) {
    arguments.sampling.resolve_tokens(tokenizer_, config_.vocab_size);
    arguments.sampling.note_explanation();
    // What the template refuses fails before the weights are read.
    std::vector<vitrine::ChatMessage> probe = arguments.chat_prompt.first_messages();
    probe.push_back({"user", "?"});
    arguments.chat_prompt.render(chat_, probe);

    vitrine::EngineOptions options = arguments.device.engine_options();
    options.max_context = static_cast<int>(
        context_limit(arguments.context, config_, arguments.model, kDefaultContext));
    options.max_step_tokens = std::min(options.max_context, kMaxStepTokens);
    arguments.constraint.reserve_steps(options);
    options.audit_mode = arguments.log.audit_mode();
    options.audit_level = arguments.log.audit_level();
    generation_.sampler = arguments.sampling.sampler;
    generation_.max_new_tokens = arguments.max_new_tokens;
    generation_.stop_token_ids = vitrine::end_of_turn_ids(tokenizer_, chat_);
    if (arguments.constraint.is_given()) {
      std::vector<int32_t> end_ids = generation_.stop_token_ids;
      for (const int64_t id : config_.eos_token_ids) end_ids.push_back(static_cast<int32_t>(id));
      grammar_ = arguments.constraint.compile(tokenizer_, static_cast<int32_t>(config_.vocab_size),
                                              end_ids, vitrine::banned_ids(generation_.sampler));
    }
    const auto ahead = ConstraintOptions::prepare(grammar_);
    engine_ = vitrine::Engine::load(arguments.model, options);
    open_sinks();
    reset();
  }

  ~Conversation() { engine_->set_audit_sink(nullptr); }

  /// Forgets what was said.
  void reset() {
    messages_ = arguments_.chat_prompt.first_messages();
    if (sequence_) engine_->release(*sequence_);
    sequence_ = engine_->create_sequence();
    ids_.clear();
    answer_.clear();
    has_answer_ = false;
  }

  /// Answers, streaming to standard output. Where the message cannot be answered, a note says why,
  /// and the conversation is as it was.
  void say(const std::string& text) {
    messages_.push_back({"user", text});
    std::vector<int32_t> prompt;
    try {
      prompt = tokenizer_.encode(arguments_.chat_prompt.render(chat_, messages_), false);
    } catch (const Error& error) {
      if (!error.is_user_error()) throw;
      messages_.pop_back();
      was_refused_ = true;
      return write_note(error.what());
    }
    if (prompt.empty()) {
      messages_.pop_back();
      was_refused_ = true;
      return write_note("the template makes an empty prompt of these messages; expected text");
    }
    const int64_t context = engine_->options().max_context;
    if (static_cast<int64_t>(prompt.size()) > context) {
      messages_.pop_back();
      was_refused_ = true;
      return write_note(
          fmt::format("the conversation has {} tokens with this message and the context holds {}; "
                      "forget it with /reset, or begin with a larger -c",
                      prompt.size(), context));
    }
    answer(prompt);
  }

  std::string audit() {
    if (!ring_) return "the recorder is off (--audit-mode none)\n";
    if (!has_answer_) return "no answer yet\n";
    std::string text = answer_experts(answer_, kMaxExpertsShown);
    if (overwritten_ > 0) {
      text += fmt::format("{} older records of the answer were overwritten\n", overwritten_);
    }
    return text;
  }

  bool was_refused() const { return was_refused_; }

  void finish(const std::string& reason) {
    engine_->release(*sequence_);
    engine_->set_audit_sink(nullptr);
    if (log_) log_->finish(reason);
    const double speed = decode_seconds_ > 0 ? static_cast<double>(steps_) / decode_seconds_ : 0;
    write_note(fmt::format(
        "{}: {} answer{}, {} tokens at {:.0f} tokens/s; {} prompt tokens computed, {} reused; seed "
        "{}; recorder {}{}",
        reason, answers_, answers_ == 1 ? "" : "s", tokens_, speed, computed_, reused_,
        arguments_.sampling.sampler.seed, arguments_.log.mode, arguments_.log.note(log_.get())));
  }

 private:
  void open_sinks() {
    if (arguments_.log.audit_mode() == vitrine::AuditMode::kNone) return;
    ring_ =
        std::make_unique<vitrine::SlabRing>(kRingBytes, vitrine::SlabRing::WhenFull::kOverwrite);
    vitrine::AuditSink* sink = ring_.get();
    if (!arguments_.log.path.empty()) {
      vitrine::LogHeader head = log_header(arguments_.model, arguments_.sampling, arguments_.device,
                                           engine_->summary(), checkpoint_);
      head.constraint = arguments_.constraint.description(arguments_.log.hides_text());
      log_ = arguments_.log.open(std::move(head), 0, [this](int32_t id) {
        return id < tokenizer_.vocab_size() ? tokenizer_.token_text(id) : std::string();
      });
      sink = &both_.emplace(log_->sink(), *ring_);
    }
    engine_->set_audit_sink(sink);
  }

  void answer(const std::vector<int32_t>& prompt) {
    // What the sequence holds of this prompt stays; the last token is computed, for its logits.
    const size_t common = static_cast<size_t>(
        std::ranges::mismatch(ids_, std::span(prompt).first(prompt.size() - 1)).in1 - ids_.begin());
    engine_->truncate(*sequence_, static_cast<int64_t>(common));
    if (ring_) {
      ring_->drain([](std::span<const std::byte>) {});
      overwritten_ = ring_->overwritten();
    }
    std::unique_ptr<vitrine::Constraint> constraint;
    arguments_.constraint.apply(grammar_, tokenizer_, constraint, generation_);
    const auto beginning = constraint ? constraint->fork() : nullptr;
    std::optional<AnswerText> answer(std::in_place, tokenizer_, arguments_.sampling.stop,
                                     beginning.get());
    std::string text;
    int32_t attempt = 0;
    // A text that may begin anew is not shown before it is known to stand.
    const bool is_held_back = arguments_.constraint.may_begin_anew();
    const auto emit = [&](const std::string& piece) {
      text += piece;
      if (!piece.empty() && !is_held_back) write_out(piece);
    };
    const vitrine::GenerateResult result =
        vitrine::generate(*engine_, *sequence_, std::span(prompt).subspan(common), generation_,
                          [&](const vitrine::TokenEvent& event) {
                            if (event.attempt != attempt) {
                              attempt = event.attempt;
                              text.clear();
                              answer.emplace(tokenizer_, arguments_.sampling.stop, beginning.get());
                            }
                            emit(answer->add(event));
                            return !answer->stopped() && interrupt_signal() == 0;
                          });
    emit(answer->finish());
    const std::string why = unfinished(result);
    write_out((is_held_back && why.empty() ? text : "") + "\n");
    if (!why.empty()) {
      write_note(why);
      write_failures(result.failures, tokenizer_);
    }
    ids_ = prompt;
    ids_.insert(ids_.end(), result.tokens.begin(), result.tokens.end());
    ids_.resize(static_cast<size_t>(engine_->length(*sequence_)));
    messages_.push_back({"assistant", text});
    if (ring_) {
      answer_ = ring_->drain_records();
      overwritten_ = ring_->overwritten() - overwritten_;
    }
    has_answer_ = true;
    ++answers_;
    tokens_ += static_cast<int64_t>(result.tokens.size());
    steps_ += std::max<int64_t>(static_cast<int64_t>(result.tokens.size()) - 1, 0);
    decode_seconds_ += result.decode_seconds;
    computed_ += static_cast<int64_t>(prompt.size() - common);
    reused_ += static_cast<int64_t>(common);
    if (result.reason == vitrine::StopReason::kContextFull) {
      write_note(
          fmt::format("the context of {} tokens is full; forget it with /reset, or begin "
                      "with a larger -c",
                      engine_->options().max_context));
    } else if (result.reason == vitrine::StopReason::kLength) {
      write_note(fmt::format("the answer was cut after {} tokens (-n)", result.tokens.size()));
    }
  }

  Arguments& arguments_;
  vitrine::Checkpoint checkpoint_;
  vitrine::ModelConfig config_;
  vitrine::Tokenizer tokenizer_;
  vitrine::ChatTemplate chat_;
  vitrine::GenerateOptions generation_;
  std::optional<vitrine::Grammar> grammar_;
  // Destroyed last to first: the engine before the sinks.
  std::unique_ptr<Log> log_;
  std::unique_ptr<vitrine::SlabRing> ring_;
  std::optional<vitrine::TeeSink> both_;
  std::unique_ptr<vitrine::Engine> engine_;

  std::optional<vitrine::SequenceId> sequence_;
  std::vector<int32_t> ids_;  // what the sequence holds
  std::vector<vitrine::ChatMessage> messages_;
  std::vector<vitrine::TokenRecord> answer_;
  bool has_answer_ = false, was_refused_ = false;
  uint64_t overwritten_ = 0;
  int64_t answers_ = 0, tokens_ = 0, steps_ = 0, computed_ = 0, reused_ = 0;
  double decode_seconds_ = 0;
};

/// False: the conversation ends.
bool obey(Conversation& conversation, const std::string& line) {
  if (line == "/exit" || line == "/quit") return false;
  if (line == "/reset") {
    conversation.reset();
    write_note("the conversation is forgotten");
  } else if (line == "/audit") {
    write_out(conversation.audit());
  } else {
    write_note("'" + line + "' is no command; expected /audit, /reset or /exit");
  }
  return true;
}

/// Until the input ends, a command or a signal ends it.
void talk(Conversation& conversation, bool is_terminal) {
  LineReader reader;
  std::string message, line;
  while (true) {
    if (is_terminal) write_out(message.empty() ? "> " : ". ");
    const bool has_ended = !reader.read(line);
    if (has_ended && is_terminal) write_out("\n");
    if (has_ended && (message.empty() || interrupt_signal() != 0)) break;
    if (has_ended) {  // behind a line that was to go on
      message.pop_back();
      line.clear();
    }
    if (line.ends_with('\r')) line.pop_back();
    if (line.ends_with('\\')) {
      line.back() = '\n';
      message += line;
      continue;
    }
    message += line;
    if (message.starts_with('/')) {
      if (!obey(conversation, message)) break;
    } else if (message.find_first_not_of(" \t\n") != std::string::npos) {
      conversation.say(message);
    }
    message.clear();
    // In a terminal Ctrl-C ends an answer, not the conversation.
    if (interrupt_signal() == SIGINT && is_terminal) clear_interrupt();
    if (interrupt_signal() != 0 || has_ended) break;
  }
}

int run_chat(Arguments arguments) {
  arguments.sampling.resolve();
  std::vector<NamedPath> inputs = arguments.constraint.files();
  inputs.insert(inputs.end(), {{"MODEL", arguments.model},
                               {"--chat-template", arguments.chat_prompt.template_file},
                               {"--chat-variables", arguments.chat_prompt.variables}});
  arguments.log.check(inputs);
  arguments.constraint.check();
  if (!arguments.log.stream.empty() || !arguments.log.hidden_states.empty()) {
    refuse("--audit-stream and --hidden-states are for generate; expected --audit FILE here");
  }
  if (std::ranges::find(arguments.log.redact, "prompt") != arguments.log.redact.end()) {
    refuse("--redact prompt is for one prompt; expected columns in a conversation: tokens,text");
  }
  Conversation conversation(arguments);
  const bool is_terminal = ::isatty(STDIN_FILENO) == 1;
  if (is_terminal)
    write_note("/audit, /reset and /exit are commands; a line's end with \\ goes on");
  catch_interrupts(false);
  try {
    talk(conversation, is_terminal);
  } catch (const OutputError&) {  // nobody reads any more; the log is whole nevertheless
    conversation.finish("cancelled");
    throw;
  }
  const int signal = interrupt_signal();
  conversation.finish(signal != 0 ? "cancelled" : "end of conversation");
  if (signal != 0) return 128 + signal;
  return conversation.was_refused() && !is_terminal ? 2 : 0;
}

}  // namespace

void add_chat(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* chat = app.add_subcommand("chat", "Answers messages, line by line");
  add_model(*chat, arguments->model);
  chat->add_option("-n,--max-new-tokens", arguments->max_new_tokens, "tokens of an answer at most")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  chat->add_option(
          "-c,--context", arguments->context,
          fmt::format("positions that a conversation may have (default: {}, or the model's "
                      "own limit where that is less)",
                      kDefaultContext))
      ->check(CLI::Range(1, 1 << 30));
  arguments->sampling.add_to(*chat, "default: a random one, which the closing line tells");
  arguments->chat_prompt.add_to(*chat);
  arguments->constraint.add_to(*chat);
  arguments->log.add_to(*chat);
  for (const char* refused : {"--audit-stream", "--hidden-states", "--hidden-positions"}) {
    chat->get_option(refused)->group("");  // known, and refused with a reason; not in the help
  }
  arguments->device.add_to(*chat);
  chat->callback([arguments, &command] { command = [arguments] { return run_chat(*arguments); }; });
}

}  // namespace cli

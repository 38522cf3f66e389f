// SPDX-License-Identifier: Apache-2.0
// Messages, answers and the model's sequence; sessions are in chat_restore.cc.
#include "chat_conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "answer_experts.h"
#include "candidates.h"
#include "closing_note.h"
#include "common.h"
#include "failure_text.h"
#include "prompt_bar.h"

namespace cli {

namespace {

using vitrine::Error;

constexpr size_t kChatConversationRingBytes = size_t{64} << 20;
constexpr size_t kMaxExpertsShown = 8;
constexpr const char* kForgotten = "the message was not read to its end and is forgotten";

bool ended_in_prompt(const vitrine::GenerateResult& result) {
  return result.reason == vitrine::StopReason::kCancelled && result.tokens.empty();
}

}  // namespace

Conversation::Conversation(ChatArguments& arguments, ChatOutput& output)
    : arguments_(arguments),
      output_(output),
      checkpoint_(open_model(arguments.model)),
      config_(vitrine::read_model_facts(checkpoint_)),
      tokenizer_(open_tokenizer(checkpoint_, config_)),
      chat_(open_chat_template(checkpoint_, arguments.chat_prompt)) {
  arguments.sampling.take_defaults(checkpoint_);
  arguments.sampling.resolve_tokens(tokenizer_, config_.vocab_size);
  if (arguments.chat_prompt.has_system()) system_ = arguments.chat_prompt.system;
  // What the template or the session refuses fails before the weights are read.
  std::optional<ChatSession> session;
  if (!arguments.load.empty()) {
    session = read_fitting_session(arguments.load);
    take_sampler(*session);
  }
  arguments.sampling.note_explanation();
  const std::string prompt = probe(session ? session->messages : first_messages());
  if (const ToolOptions& tools = arguments.constraint.tools; tools.is_given()) {
    calling_.emplace(tools, chat_, tokenizer_, arguments.chat_prompt.format);
    Messages messages = first_messages();
    messages.push_back({"user", "?"});
    calling_->warn_if_untold(arguments.model, messages, arguments.chat_prompt.chat_options());
  }

  vitrine::EngineOptions options = arguments.device.engine_options();
  options.max_context =
      static_cast<int>(arguments.length.context_limit(config_, arguments.model, kDefaultContext));
  options.max_step_tokens = std::min(options.max_context, arguments.length.step_tokens);
  if (!arguments.log.path.empty()) options.max_sequences = 2;  // move_to_branch() forks
  arguments.constraint.reserve_steps(options);
  drafter_ = arguments.speculation.reserve_steps(arguments.model, options);
  options.audit_mode = arguments.log.audit_mode();
  options.audit_level = arguments.log.audit_level();
  generation_.sampler = arguments.sampling.sampler;
  generation_.max_new_tokens = arguments.length.token_limit();
  arguments.length.check({{arguments.constraint.is_given(), "a constraint"},
                          {arguments.constraint.tools.is_given(), "--tools"},
                          {arguments.speculation.is_given(), "--speculate"}});
  generation_.context_shift = arguments.length.context_shift;
  generation_.stop_token_ids = vitrine::end_of_turn_ids(tokenizer_, chat_);
  compile_constraint(prompt);
  const auto ahead = ConstraintOptions::prepare(grammar_);
  engine_ = vitrine::Engine::load(arguments.model, options);
  if (session) require_fit(arguments.load, *session);
  open_drafter();
  open_sinks();
  messages_ = first_messages();
  renew_sequence();
  if (session) take_over(*session);
  if (session && arguments.chat_prompt.has_system()) set_system(arguments.chat_prompt.system);
}

void Conversation::compile_constraint(const std::string& prompt) {
  if (!arguments_.constraint.is_given()) return;
  std::optional<vitrine::ToolCallTags> calls;
  if (calling_) {
    calls = calling_->tags(prompt);
    if (grammar_ && calls->json == tags_json_) return;
    tags_json_ = calls->json;
  }
  std::vector<int32_t> end_ids = generation_.stop_token_ids;
  for (const int64_t id : config_.eos_token_ids) end_ids.push_back(static_cast<int32_t>(id));
  grammar_ =
      arguments_.constraint.compile(tokenizer_, static_cast<int32_t>(config_.vocab_size), end_ids,
                                    vitrine::banned_ids(generation_.sampler), calls);
}

/// What a drafter computed of a conversation serves its next turn, too.
void Conversation::open_drafter() {
  generation_.speculation = arguments_.speculation.apply(*engine_, tokenizer_, drafter_);
  if (drafter_ == nullptr || !arguments_.speculation.has_dear_texts()) return;
  drafter_ = vitrine::keep_text(std::move(drafter_), engine_->options().max_context);
  generation_.speculation.drafter = drafter_.get();
}

void Conversation::open_sinks() {
  if (arguments_.log.audit_mode() == vitrine::AuditMode::kNone) return;
  ring_ = std::make_unique<vitrine::SlabRing>(kChatConversationRingBytes,
                                              vitrine::SlabRing::WhenFull::kOverwrite);
  vitrine::AuditSink* sink = ring_.get();
  if (!arguments_.log.path.empty()) {
    vitrine::LogHeader head = log_header(arguments_.model, arguments_.sampling, arguments_.device,
                                         engine_->summary(), checkpoint_);
    hashes_ = head.hashes;
    catch_interrupts(false);  // from here on there is something to finish
    arguments_.length.add_to(head);
    head.constraint = arguments_.constraint.description(arguments_.log.hides_text());
    head.speculation = arguments_.speculation.description();
    if (arguments_.device.strict) require_private_key("--seal", arguments_.log.seal);
    log_ = arguments_.log.open(std::move(head), 0,
                               [this](int32_t id) { return token_piece(tokenizer_, id); });
    sink = &both_.emplace(log_->sink(), *ring_);
  }
  engine_->set_audit_sink(sink);
}

void Conversation::refuse(const std::string& why) {
  was_refused_ = true;
  output_.refused(why);
}

Conversation::Messages Conversation::first_messages() const {
  if (!system_) return {};
  return {{"system", *system_}};
}

/// The prompt of a message behind these. Throws what the template says to it.
std::string Conversation::probe(Messages messages) const {
  if (!messages.empty() && messages.back().role == "tool") {
    return arguments_.chat_prompt.render(chat_, messages);
  }
  messages.push_back({"user", "?"});
  return arguments_.chat_prompt.render(chat_, messages);
}

/// Nothing where they cannot be answered, which is told.
std::optional<std::vector<int32_t>> Conversation::prompt_of(const Messages& messages) {
  std::vector<int32_t> prompt;
  try {
    prompt_text_ = arguments_.chat_prompt.render(chat_, messages);
    prompt = tokenizer_.encode(prompt_text_, false, &interrupt_flag());
  } catch (const Error& error) {
    if (error.kind() == vitrine::ErrorKind::kCancelled && interrupt_signal() != 0) {
      output_.note(kForgotten);
      return {};
    }
    if (!error.is_user_error()) throw;
    refuse(error.what());
    return {};
  }
  const int64_t context = engine_->options().max_context;
  if (prompt.empty()) {
    refuse("the template makes an empty prompt of these messages; expected text");
    return {};
  }
  if (generation_.context_shift) shift_prompt(prompt, messages);
  if (static_cast<int64_t>(prompt.size()) > context) {
    refuse(
        fmt::format("the conversation has {} tokens with this message and the context holds {}; "
                    "{}, or begin with a larger -c",
                    prompt.size(), context, way_out()));
    return {};
  }
  return prompt;
}

void Conversation::say(const std::string& text) {
  if (!messages_.empty() && messages_.back().role == "tool") {
    return refuse("the answer's calls wait for further results; expected /tool TEXT, or /undo");
  }
  Messages messages = messages_;
  messages.push_back({"user", text});
  const auto prompt = prompt_of(messages);
  if (!prompt) return;
  messages_ = std::move(messages);
  answer(*prompt);
}

void Conversation::regenerate() {
  if (messages_.empty() || messages_.back().role != "assistant") {
    return refuse("/regen: there is no answer yet; expected a message before it");
  }
  if (next_branch_ >= kMaxChatBranch) {
    return refuse(fmt::format("/regen: {} answers were made again already; expected fewer",
                              next_branch_ - 1));
  }
  const auto prompt = prompt_of({messages_.begin(), messages_.end() - 1});
  if (!prompt) return;
  if (generation_.sampler.temperature == 0) {
    output_.remark("at temperature 0 the same answer comes again");
  }
  messages_.pop_back();
  keep_common(*prompt);
  move_to_branch(next_branch_);
  answer(*prompt);
}

void Conversation::undo() {
  const size_t begin = begin_of_last_turn();
  if (begin == messages_.size()) {
    return refuse("/undo: there is no message to forget; expected one before it");
  }
  Messages messages(messages_.begin(), messages_.begin() + static_cast<ptrdiff_t>(begin));
  std::vector<int32_t> tokens;
  if (!messages.empty()) {
    try {
      tokens = tokenizer_.encode(
          arguments_.chat_prompt.render(chat_, messages, /*opens_answer=*/false), false);
    } catch (const Error& error) {  // the template wants more; it is asked again with a message
      if (!error.is_user_error()) throw;
    }
  }
  messages_ = std::move(messages);
  keep_common(tokens);
  has_answer_ = false;
  output_.note("the last message and its answer are forgotten");
}

void Conversation::set_system(const std::optional<std::string>& text) {
  const std::optional<std::string> before = std::exchange(system_, text);
  Messages messages = first_messages();
  for (const vitrine::ChatMessage& message : messages_) {
    if (message.role != "system") messages.push_back(message);
  }
  try {
    probe(messages);
  } catch (const Error& error) {
    system_ = before;
    if (!error.is_user_error()) throw;
    return refuse(error.what());
  }
  messages_ = std::move(messages);
  output_.note(text ? "the system message counts from the next answer on"
                    : "there is no system message from the next answer on");
}

void Conversation::reset() {
  messages_ = first_messages();
  renew_sequence();
  has_answer_ = false;
  records_.clear();
  output_.note("the conversation is forgotten");
}

void Conversation::renew_sequence() {
  if (sequence_) engine_->release(*sequence_);
  sequence_ = engine_->create_sequence();
  ids_.clear();
  generation_.branch = 0;
}

void Conversation::truncate(size_t length) {
  engine_->truncate(*sequence_, static_cast<int64_t>(length));
  ids_.resize(length);
}

void Conversation::keep_common(std::span<const int32_t> tokens) {
  truncate(static_cast<size_t>(std::ranges::mismatch(ids_, tokens).in1 - ids_.begin()));
}

/// From here on the sequence draws this branch's random numbers. `audit replay` knows them by
/// counting a log's forks, so with a log there are forks until it comes to the branch.
void Conversation::move_to_branch(uint32_t branch) {
  generation_.branch = branch;
  next_branch_ = std::max(next_branch_, branch + 1);
  if (!log_ || branch == 0) return;
  // Forks share whole blocks; a partial one would need room that a full context has not.
  const auto block = static_cast<size_t>(engine_->options().kv_block_size);
  truncate(ids_.size() / block * block);
  for (bool is_there = false; !is_there; ++num_forks_) {
    const vitrine::SequenceId fork = engine_->fork(*sequence_);
    is_there = num_forks_ == branch;
    engine_->release(is_there ? std::exchange(*sequence_, fork) : fork);
  }
}

vitrine::GenerateResult Conversation::generate(std::span<const int32_t> prompt,
                                               vitrine::ChatAnswer& found, std::string& reason) {
  std::unique_ptr<vitrine::Constraint> constraint;
  if (calling_) compile_constraint(prompt_text_);
  arguments_.constraint.apply(grammar_, tokenizer_, constraint, generation_);
  const auto beginning = constraint ? constraint->fork() : nullptr;
  const std::vector<std::string>& stop = arguments_.sampling.stop;
  AnswerFormat format = arguments_.chat_prompt.answer_format(chat_, tokenizer_, prompt_text_,
                                                             arguments_.constraint.is_given());
  if (calling_) format.name = calling_->format();
  std::string text;
  std::optional<AnswerText> answer(std::in_place, tokenizer_, stop, beginning.get(), format);
  int32_t attempt = 0;
  generation_.sequence = *sequence_;
  PromptBar bar(std::ssize(prompt));
  vitrine::GenerateOptions options = generation_;
  options.on_progress = bar.teller();
  vitrine::GenerateResult result =
      vitrine::generate(*engine_, prompt, options, [&](const vitrine::TokenEvent& event) {
        if (event.attempt != attempt) {
          attempt = event.attempt;
          text.clear();
          answer.emplace(tokenizer_, stop, beginning.get(), format);
          output_.restart(attempt);
        }
        const std::string piece = answer->add(event);
        text += piece;
        output_.token(event.token, piece, answer->take_reasoning(), tokenizer_);
        return !answer->stopped() && interrupt_signal() == 0;
      });
  bar.end();
  const std::string rest = answer->finish();
  text += rest;
  output_.rest(rest, answer->take_reasoning());
  if (answer->parts() != nullptr) found = *answer->parts();
  found.content = text;
  reason = answer->reason(result.reason);
  return result;
}

void Conversation::answer(const std::vector<int32_t>& prompt) {
  // What the sequence holds of this prompt stays; the last token is computed, for its logits.
  keep_common(std::span(prompt).first(prompt.size() - 1));
  const size_t common = ids_.size();
  if (ring_) {
    ring_->drain([](std::span<const std::byte>) {});
    overwritten_ = ring_->overwritten();
  }
  output_.start({.model = arguments_.model,
                 .prompt_tokens = static_cast<int64_t>(prompt.size()),
                 .reused_tokens = static_cast<int64_t>(common),
                 .seed = generation_.sampler.seed});
  vitrine::ChatAnswer parts;
  std::string reason;
  const vitrine::GenerateResult result = generate(std::span(prompt).subspan(common), parts, reason);
  const std::string why = unfinished(result);
  output_.end({.text = parts.content,
               .reason = reason,
               .tokens = static_cast<int64_t>(result.tokens.size()),
               .is_complete = result.is_complete,
               .failure = why,
               .prefill_seconds = result.prefill_seconds,
               .decode_seconds = result.decode_seconds,
               .parts = parts});
  if (!why.empty()) write_failures(result.failures, tokenizer_);
  const std::span<const int32_t> held = engine_->tokens(*sequence_);
  ids_.assign(held.begin(), held.end());
  if (ring_) {
    records_ = ring_->drain_records();
    overwritten_ = ring_->overwritten() - overwritten_;
  }
  has_answer_ = !ended_in_prompt(result);
  if (has_answer_) {
    messages_.push_back(parts.message());
    ++answers_;
  } else {
    messages_.pop_back();
  }
  tokens_ += static_cast<int64_t>(result.tokens.size());
  steps_ += std::max<int64_t>(static_cast<int64_t>(result.tokens.size()) - 1, 0);
  decode_seconds_ += result.decode_seconds;
  const auto computed = std::min(ids_.size(), prompt.size());
  computed_ += static_cast<int64_t>(computed - std::min(common, computed));
  reused_ += static_cast<int64_t>(common);
  speculation_ += result.speculation;
  if (!result.speculation.problem.empty()) output_.remark(result.speculation.problem);
  tell_end(result);
}

void Conversation::tell_end(const vitrine::GenerateResult& result) {
  if (ended_in_prompt(result)) {
    output_.note(kForgotten);
  } else if (result.reason == vitrine::StopReason::kContextFull) {
    output_.remark(fmt::format("the context of {} tokens is full; {}, or begin with a larger -c",
                               engine_->options().max_context, way_out()));
  } else if (!result.shifts.empty()) {
    output_.remark("the answer outgrew the context" + shift_note(result.shifts));
  } else if (result.reason == vitrine::StopReason::kLength) {
    output_.remark(fmt::format("the answer was cut after {} tokens (-n)", result.tokens.size()));
  } else if (const std::string warning = squeezed(result); !warning.empty()) {
    output_.remark(warning);
  }
}

std::string Conversation::audit() const {
  if (!ring_) return "the recorder is off (--audit-mode none)\n";
  if (!has_answer_) return "no answer yet\n";
  std::string text = answer_experts(records_, kMaxExpertsShown);
  if (overwritten_ > 0) {
    text += fmt::format("{} older records of the answer were overwritten\n", overwritten_);
  }
  return text;
}

void Conversation::finish(const std::string& reason) {
  engine_->release(*sequence_);
  engine_->set_audit_sink(nullptr);
  if (log_) log_->finish(reason);
  write_remark(fmt::format(
      "{}: {} answer{}, {}; {} prompt tokens computed, {} reused; seed {}; recorder {}{}{}", reason,
      answers_, answers_ == 1 ? "" : "s", token_speed(tokens_, steps_, decode_seconds_), computed_,
      reused_, generation_.sampler.seed, arguments_.log.mode, arguments_.log.note(log_.get()),
      speculation_note(speculation_)));
}

}  // namespace cli

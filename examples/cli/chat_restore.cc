// SPDX-License-Identifier: Apache-2.0
// A conversation goes into a session and comes out of one.
#include <fmt/format.h>

#include <algorithm>

#include "chat_conversation.h"
#include "common.h"
#include "prompt_bar.h"

namespace cli {

namespace {

using vitrine::Error;
using vitrine::ErrorKind;

/// What a list holds is not added to that of another place.
void clear_list(vitrine::SamplerOptions& sampler, const std::string& name) {
  if (name == "penalty_exempt") sampler.penalty_exempt.clear();
  if (name == "logit_bias") sampler.logit_bias.clear();
  if (name == "ban") sampler.ban.clear();
}

/// The session's options, but for those of the command line.
vitrine::SamplerOptions merged(vitrine::SamplerOptions sampler, const SamplingOptions& given) {
  for (const std::string& name : given.given_options) {
    clear_list(sampler, name);
    vitrine::set_sampler_option(sampler, name, vitrine::sampler_option_text(given.sampler, name));
  }
  if (!given.dry_breakers.empty()) {
    sampler.dry_sequence_breakers = given.sampler.dry_sequence_breakers;
  }
  if (!given.sampler.samplers.empty()) sampler.samplers = given.sampler.samplers;
  if (given.seed) sampler.seed = *given.seed;
  return sampler;
}

}  // namespace

/// What decides about an answer beside the model, the sampler and the messages.
std::vector<std::pair<std::string, std::string>> Conversation::settings() const {
  const ChatPromptOptions& prompt = arguments_.chat_prompt;
  std::vector<std::pair<std::string, std::string>> settings = {
      {"chat_template", prompt.template_file.empty()
                            ? ""
                            : vitrine::sha256_of_text(chat_template_source(prompt.template_file))},
      {"chat_variables", prompt.variables},
      {"max_new_tokens", std::to_string(arguments_.length.max_new_tokens)},
      {"stop", nlohmann::json(arguments_.sampling.stop)
                   .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)},
      {"rope_frequencies", arguments_.device.rope_frequencies},
      {"kv_type", engine_->summary().kv_codec},
      {"activation_type", arguments_.device.activation_type}};
  if (!prompt.format.empty()) settings.emplace_back("answer_format", prompt.format);
  vitrine::LogHeader of_lora;
  add_lora_to(arguments_.device.lora, of_lora);
  settings.insert(settings.end(), of_lora.engine.begin(), of_lora.engine.end());
  for (const auto& [name, value] : arguments_.constraint.description(/*hides_text=*/true)) {
    settings.emplace_back("constraint_" + name, value);
  }
  return settings;
}

FileHashes Conversation::model_hashes() const {
  FileHashes hashes = file_hashes(checkpoint_);
  for (auto& hash : lora_hashes(lora_parts(arguments_.device.lora))) {
    hashes.push_back(std::move(hash));
  }
  return hashes;
}

void Conversation::save(const std::string& path) {
  std::vector<NamedPath> others = arguments_.files();
  others.insert(others.end(), {{"--audit", arguments_.log.path}, {"--seal", arguments_.log.seal}});
  refuse_same_file({"/save", path}, others);
  if (hashes_.empty()) hashes_ = model_hashes();
  const std::string& trace_id = arguments_.log.trace_id;
  write_session(path, {.model = hashes_,
                       .sampler = generation_.sampler,
                       .branch = generation_.branch,
                       .trace_id = trace_id.empty() ? trace_id_ : trace_id,
                       .settings = settings(),
                       .messages = messages_,
                       .tokens = ids_});
  output_.note("the conversation is in " + path);
}

/// A session of this model; throws what is wrong with it.
ChatSession Conversation::read_fitting_session(const std::string& path) const {
  ChatSession session = read_session(path, config_.vocab_size);
  try {
    vitrine::check_sampler_options(session.sampler, config_.vocab_size);
  } catch (const Error& error) {
    throw Error(ErrorKind::kBadFile, path + ": sampler: " + error.what());
  }
  const FileHashes hashes = hashes_.empty() ? model_hashes() : hashes_;
  if (!first_other_file(session.model, hashes).empty()) {
    cli::refuse(
        fmt::format("{}: is of another model, whose files have another SHA-256; expected a session "
                    "of {}",
                    path, arguments_.model));
  }
  return session;
}

/// Takes a session's sampler for --load, before anything hangs on the options.
void Conversation::take_sampler(const ChatSession& session) {
  SamplingOptions& sampling = arguments_.sampling;
  sampling.sampler = merged(session.sampler, sampling);
  vitrine::check_sampler_options(sampling.sampler, config_.vocab_size);
  LogOptions& log = arguments_.log;
  if (log.trace_id.empty() && log.path.ends_with(".vtr")) log.trace_id = session.trace_id;
}

/// Throws where the engine, the constraint or the log does not take the session.
void Conversation::require_fit(const std::string& path, const ChatSession& session) const {
  const int64_t context = engine_->options().max_context;
  if (static_cast<int64_t>(session.tokens.size()) > context) {
    cli::refuse(fmt::format("{}: tokens are {} and the context holds {}; begin with a larger -c",
                            path, session.tokens.size(), context));
  }
  probe(session.messages);
}

/// The log tells a branch by its forks, which it cannot take back.
bool Conversation::is_past(const ChatSession& session) const {
  return log_ != nullptr && session.branch != 0 && session.branch < num_forks_;
}

void Conversation::load(const std::string& path) {
  const ChatSession session = read_fitting_session(path);
  require_fit(path, session);
  const vitrine::SamplerOptions& now = generation_.sampler;
  const bool is_same_sampler =
      session.sampler.seed == now.seed &&
      vitrine::sampler_option_values(session.sampler) == vitrine::sampler_option_values(now);
  if (log_ && !is_same_sampler) {
    cli::refuse(
        fmt::format("{}: has another seed or other sampling options than the log's head "
                    "tells; begin with --load {}",
                    path, path));
  }
  if (grammar_ && vitrine::banned_ids(session.sampler) != vitrine::banned_ids(now)) {
    cli::refuse(
        fmt::format("{}: bans other tokens than the constraint was made for; begin with "
                    "--load {}",
                    path, path));
  }
  if (is_past(session) && next_branch_ >= kMaxChatBranch) {
    cli::refuse(path + ": the log has no further random numbers; begin with --load " + path);
  }
  generation_.sampler = session.sampler;
  renew_sequence();
  take_over(session);
}

void Conversation::take_over(const ChatSession& session) {
  messages_ = session.messages;
  const bool has_system = !messages_.empty() && messages_[0].role == "system";
  system_ = has_system ? std::optional(messages_[0].content) : std::nullopt;
  trace_id_ = session.trace_id;
  has_answer_ = false;
  records_.clear();
  const bool draws_others = is_past(session);
  if (session.branch != 0) move_to_branch(draws_others ? next_branch_ : session.branch);
  // Keys and values are computed anew.
  if (const auto rest = std::span(session.tokens).subspan(ids_.size()); !rest.empty()) {
    PromptBar bar(std::ssize(rest));
    vitrine::GenerateOptions options;
    options.max_new_tokens = 0;
    options.sequence = *sequence_;
    options.on_progress = bar.teller();
    vitrine::generate(*engine_, rest, options);
    ids_ = session.tokens;
    ids_.resize(static_cast<size_t>(engine_->length(*sequence_)));
  }
  computed_ += static_cast<int64_t>(ids_.size());
  size_t answers = 0;
  for (const vitrine::ChatMessage& message : messages_) answers += message.role == "assistant";
  output_.note(
      fmt::format("the conversation goes on behind {} answer{}", answers, answers == 1 ? "" : "s"));
  if (draws_others) {
    output_.note("further answers draw other random numbers than before it was saved");
  }
  ChatSession here;
  here.settings = settings();
  if (const std::string other = other_settings(here, session); !other.empty()) {
    output_.note("the session was made with other settings (" + other +
                 "); answers follow those of this run");
  }
}

}  // namespace cli

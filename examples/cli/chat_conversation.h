// SPDX-License-Identifier: Apache-2.0
// A conversation with a model: what was said, the sequence that holds it, the recorder.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat_arguments.h"
#include "chat_output.h"
#include "chat_session.h"
#include "vitrine/audit_stream.h"
#include "vitrine/chat.h"

namespace cli {

class Conversation {
 public:
  /// Loads the model, and the session of --load. Both arguments must stay.
  Conversation(ChatArguments& arguments, ChatOutput& output);
  ~Conversation() { engine_->set_audit_sink(nullptr); }

  // Each of these leaves the conversation as it was where it cannot be done, and says why.
  /// Answers a message.
  void say(const std::string& text);
  /// Gives the result of the first call of the last answer that has none, and answers once all have
  /// theirs.
  void give_result(const std::string& text);
  /// Answers the last message again, with other random numbers.
  void regenerate();
  /// Forgets the last message and its answer.
  void undo();
  /// From now on; nothing: the template's own, where it has one.
  void set_system(const std::optional<std::string>& text);
  /// Forgets the oldest turns, until what is left takes half of the context at most.
  void compact();
  /// Forgets what was said.
  void reset();
  void save(const std::string& path);
  void load(const std::string& path);

  /// The experts that made the last answer.
  std::string audit() const;
  /// Something was refused.
  bool was_refused() const { return was_refused_; }
  void refuse(const std::string& why);
  /// Ends the log and tells what was computed.
  void finish(const std::string& reason);

 private:
  using Messages = std::vector<vitrine::ChatMessage>;
  Messages first_messages() const;
  std::optional<std::vector<int32_t>> prompt_of(const Messages& messages);  // and prompt_text_
  std::string probe(Messages messages) const;
  /// What makes room in a full context.
  std::string way_out() const;
  int64_t system_tokens(const Messages& messages) const;
  /// Drops tokens behind the first ones until the context holds the rest, and says how many.
  void shift_prompt(std::vector<int32_t>& prompt, const Messages& messages);

  size_t begin_of_last_turn() const;
  /// What the answer to a prompt has to be.
  void compile_constraint(const std::string& prompt);
  void open_drafter();
  void open_sinks();
  ChatSession read_fitting_session(const std::string& path) const;
  void take_sampler(const ChatSession& session);
  void require_fit(const std::string& path, const ChatSession& session) const;
  void take_over(const ChatSession& session);
  bool is_past(const ChatSession& session) const;
  std::vector<std::pair<std::string, std::string>> settings() const;
  /// Hashes all files that the model and its adapters are made of.
  FileHashes model_hashes() const;

  /// Forgets what the sequence holds beyond what it shares with these tokens.
  void keep_common(std::span<const int32_t> tokens);
  void truncate(size_t length);
  void move_to_branch(uint32_t branch);
  void renew_sequence();

  void answer(const std::vector<int32_t>& prompt);
  vitrine::GenerateResult generate(std::span<const int32_t> prompt, vitrine::ChatAnswer& answer,
                                   std::string& reason);
  void tell_end(const vitrine::GenerateResult& result);

  ChatArguments& arguments_;
  ChatOutput& output_;
  vitrine::Checkpoint checkpoint_;
  vitrine::ModelFacts config_;
  vitrine::Tokenizer tokenizer_;
  vitrine::ChatTemplate chat_;
  FileHashes hashes_;  // once they were needed
  vitrine::GenerateOptions generation_;
  std::optional<vitrine::Grammar> grammar_;
  std::optional<ToolCalling> calling_;  // where there are tools
  std::string tags_json_;               // that grammar_ was made from
  // Destroyed last to first: the engine before the sinks.
  std::unique_ptr<Log> log_;
  std::unique_ptr<vitrine::SlabRing> ring_;
  std::optional<vitrine::TeeSink> both_;
  std::unique_ptr<vitrine::Engine> engine_;
  std::unique_ptr<vitrine::Drafter> drafter_;  // gone before the engine, which it may guess with
  vitrine::SpeculationCounts speculation_;     // of all answers

  std::optional<std::string> system_;
  Messages messages_;
  std::string prompt_text_;  // of the answer that comes
  std::optional<vitrine::SequenceId> sequence_;
  std::vector<int32_t> ids_;  // what the sequence holds
  uint32_t num_forks_ = 0;    // that the log has: the n-th one is branch n
  uint32_t next_branch_ = 1;  // whose random numbers nothing was drawn from
  std::string trace_id_;
  std::vector<vitrine::TokenRecord> records_;  // of the last answer
  bool has_answer_ = false, was_refused_ = false;
  uint64_t overwritten_ = 0;
  int64_t answers_ = 0, tokens_ = 0, steps_ = 0, computed_ = 0, reused_ = 0;
  double decode_seconds_ = 0;
};

}  // namespace cli

// SPDX-License-Identifier: Apache-2.0
// The room `engine`: a model as a host wants it, whatever its files are: tokenizer, chat template
// and what runs it, together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vitrine/chat.h"
#include "vitrine/constrain.h"
#include "vitrine/engine.h"
#include "vitrine/federation_engine.h"
#include "vitrine/tokenizer.h"

namespace vitrine {

/// What Model::open makes of the files.
struct ModelOptions {
  /// Options of the engine, or of the federation. `max_context` 0 means the model's own limit here
  /// too, but at most kDefaultContext, since keys and values of a million positions fit no memory.
  EngineOptions engine = {};
  /// A chat template (Jinja text) in place of the model's own.
  std::optional<std::string> chat_template = {};

  static constexpr int kDefaultContext = 4096;  ///< positions
};

/// A model opened from a Hugging Face folder, a GGUF file or a federation file, with all that a
/// host needs to answer a text.
///
///     Model model = Model::open("SmolLM2-135M-Instruct.Q4_1.gguf");
///     std::vector<int32_t> prompt = model.encode_chat({{{"user", "What is an expert?"}}});
///     GenerateOptions options;
///     options.stop_token_ids = model.end_of_turn_ids();
///     GenerateResult result = generate(model, prompt, options);
///     std::string answer = model.tokenizer().decode(result.tokens);
///
/// What only reads (tokenizer, chat template, encode_chat, end_of_turn_ids, token_table, path,
/// summary) may be used by any number of threads, also while another one generates. All the rest is
/// for one thread at a time, as an Engine is. A model that was moved from can only be destroyed or
/// assigned to.
class VITRINE_API Model final : public Stepper {
 public:
  /// Reads everything. A file is a federation where its text begins with { or its name ends with
  /// .json, else GGUF. Throws kInvalidArgument where nothing is at `path` and for options out of
  /// range or of which a federation takes none (adapters), kBadFile (also for a model without a
  /// tokenizer), kUnsupported, kIo, kOutOfMemory, and what Engine::load, Federation::load and
  /// ChatTemplate::parse throw. Thread-safe.
  static Model open(const std::string& path, const ModelOptions& options = {});

  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model() override;

  /// Returns the path as it was given to open().
  const std::string& path() const;
  /// Returns the tokenizer; all specialists of a federation have the same.
  const Tokenizer& tokenizer() const;
  /// Returns the model's chat template, in a federation that of its base or first specialist; null
  /// where there is none: such a model continues texts. Throws kBadFile where it has one that
  /// cannot be read (the model can be used without it).
  const ChatTemplate* chat_template() const;
  /// Returns the facts about the model; for a federation, sums over its specialists.
  const ModelSummary& summary() const override;
  /// Returns the options, with what stands for defaults.
  const EngineOptions& options() const override;
  /// Returns the engine, or null: a model has either an engine or a federation.
  Engine* engine() override;
  /// Returns the engine, or null.
  const Engine* engine() const;
  /// Returns the federation, or null.
  Federation* federation();
  /// Returns the federation, or null.
  const Federation* federation() const;

  /// Returns the ids of a conversation as the chat template writes it, up to where the assistant
  /// begins. Special tokens that it or a message spells become these tokens; none are added. Throws
  /// kInvalidArgument where the model has no chat template, and what ChatTemplate::render throws.
  std::vector<int32_t> encode_chat(std::span<const ChatMessage> messages,
                                   const ChatOptions& options = {}) const;
  /// Returns the ids that end an answer of a conversation, ascending, beside the model's own
  /// end-of-text ids: for GenerateOptions::stop_token_ids. Empty without a chat template.
  const std::vector<int32_t>& end_of_turn_ids() const;
  /// Returns the vocabulary as constraints see it (make_token_table), ended by the model's
  /// end-of-text ids and end_of_turn_ids(). The first call makes it, in about the time that a
  /// tokenizer takes to load; later ones share it and the masks that its grammars keep. Throws what
  /// make_token_table throws.
  TokenTable token_table() const;

  using Stepper::create_sequence;
  SequenceId create_sequence(int adapter) override;
  SequenceId fork(SequenceId sequence) override;
  void truncate(SequenceId sequence, int64_t length) override;
  void release(SequenceId sequence) override;
  int64_t length(SequenceId sequence) const override;
  std::span<const int32_t> tokens(SequenceId sequence) const override;
  using Stepper::attach;
  void keep(SequenceId sequence, int64_t count) override;
  PrefixId retain(SequenceId sequence, int64_t length) override;
  SequenceId attach(PrefixId prefix, int64_t length) override;
  KvPrefix prefix(PrefixId prefix) const override;
  int64_t resumed_length(PrefixId prefix, int64_t length) const override;
  void release_prefix(PrefixId prefix) override;
  void preempt(SequenceId sequence) override;
  std::pair<int64_t, int64_t> kv_blocks() const override;
  StepFit fits(std::span<const StepInput> inputs) const override;
  StepperTraits traits() const override;
  ThreadLender* thread_lender() override;
  std::span<const StepOutput> step(std::span<const StepInput> inputs) override;
  std::span<const StepFailure> failures() const override;
  std::span<const SpecialistShare> shares(size_t output) const override;
  std::span<const float> features(SequenceId sequence) const override;
  void set_audit_sink(AuditSink* sink) override;
  AuditSink* audit_sink() const override;
  const AuditLayout& audit_layout() const override;
  void set_audit_mode(AuditMode mode) override;

 private:
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Returns the tokenizer of an open checkpoint, for hosts that load the parts themselves. Throws
/// kBadFile where it has none, and what Checkpoint::tokenizer_json and Tokenizer::from_json throw.
/// Thread-safe.
VITRINE_API Tokenizer open_tokenizer(const Checkpoint& checkpoint);
/// Does the same, and throws kBadFile, too, where the tokenizer has more ids than the model's
/// embedding has rows. Thread-safe.
VITRINE_API Tokenizer open_tokenizer(const Checkpoint& checkpoint, const ModelFacts& facts);
/// Returns a tokenizer's ids as constraints see them: `vocab_size` of them
/// (ModelSummary::vocab_size, rows that the model's head has beyond the tokenizer's ids among them,
/// which are never allowed), each with the bytes that it adds. Special tokens add none: an answer
/// cannot spell one, and only `end_ids` may end it. Throws kInvalidArgument where
/// TokenTable::from_bytes does. Thread-safe.
VITRINE_API TokenTable make_token_table(const Tokenizer& tokenizer, int32_t vocab_size,
                                        std::vector<int32_t> end_ids);

/// What generation_config.json says about sampling (Hugging Face's fields of these names; a GGUF
/// file's `general.sampling.temp`, `.top_k` and `.top_p`), each only where it is there.
struct GenerationDefaults {
  std::optional<double> temperature;  ///< 0: greedy
  std::optional<int32_t> top_k;       ///< tokens; 0: off
  std::optional<double> top_p;        ///< above 0, at most 1 (off)

  /// Returns true where nothing is said.
  bool is_empty() const { return !temperature && !top_k && !top_p; }
};

/// Reads a checkpoint's defaults. Thread-safe. Throws kBadFile with the file, the field and what
/// was expected for a value that is none (a temperature below 0 or above 100, a top_k below -1,
/// which is read as 0, a top_p beyond 0 to 1).
VITRINE_API GenerationDefaults generation_defaults(const Checkpoint& checkpoint);

}  // namespace vitrine

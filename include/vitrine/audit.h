// SPDX-License-Identifier: Apache-2.0
// The room `audit`: what the recorder saw, as structs and as a JSON log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "vitrine/audit_sink.h"
#include "vitrine/core.h"
#include "vitrine/sampler_stage.h"

namespace vitrine {

/// One expert that a token went through in a layer.
struct RouteRecord {
  int32_t expert = 0;  ///< its number in the layer
  float weight = 0;    ///< gate weight, as used
};

/// What a router chose an expert by.
struct SelectionRecord {
  float score = 0;  ///< the expert's score, from which its weight is made
  float key = 0;    ///< what the experts were ordered by: the score and the expert's correction
};

/// Returns "plain", "softmax" or "sigmoid".
VITRINE_API std::string_view router_kind_name(RouterKind kind);

/// What one layer did with a token.
struct LayerRecord {
  int32_t layer = 0;                       ///< counts from 0
  float residual_norm = 0;                 ///< L2 norm of the residual stream entering the layer
  std::vector<RouteRecord> routes;         ///< slot order; empty for a dense layer
  std::vector<float> router_probs;         ///< [num_experts]; level full only
  RouterKind router = RouterKind::kPlain;  ///< what its router chooses by
  std::vector<SelectionRecord> selection = {};  ///< [routes]; empty of a plain router, or where it
                                                ///< was not recorded
  std::vector<float> expert_norms = {};  ///< [routes] L2 norm of what each expert gave, before its
                                         ///< weight; empty where it was not recorded
};

/// A token that could have come next.
struct AlternativeRecord {
  int32_t token = 0;  ///< its id
  float logprob = 0;  ///< nats
};

/// Returns "embedding", "attention", "dense_ffn", "expert", "shared_expert", "layer_input" or
/// "soft_cap".
VITRINE_API std::string_view term_kind_name(AuditLayout::Term::Kind kind);

/// What one part of the model added to a token's logit.
struct TermRecord {
  AuditLayout::Term::Kind kind =
      AuditLayout::Term::Kind::kEmbedding;  ///< which part of the model it is
  int32_t layer = -1;                       ///< -1: outside of the layers
  int32_t expert = -1;                      ///< kExpert: which
  float value = 0;                          ///< what it added to the chosen token's logit
  float runner_up = 0;                      ///< what it added to the runner-up's logit
};

/// A logit as a sum: logit = the terms' sum + rounding (docs/attribution.md).
struct AttributionRecord {
  std::vector<TermRecord> terms;  ///< empty where nothing was attributed
  float logit = 0;                ///< of the chosen token
  float rounding = 0;             ///< `logit` less the terms' sum
  int32_t runner_up = -1;         ///< the best token that was not chosen
  float runner_up_logit = 0;      ///< the runner-up's
  float runner_up_rounding = 0;   ///< `runner_up_logit` less the terms' sum
};

/// The residual stream at a token, before the norm of the layer that it enters.
struct HiddenStateRecord {
  int32_t layer = 0;  ///< the layer that it enters; the number of layers: it leaves the last one
  std::vector<float> values;  ///< [hidden_size]
};

/// Returns "responsibility" or "term".
VITRINE_API std::string_view share_kind_name(ShareKind kind);

/// How several specialists came to a token; the layout's or the header's `federation` names them.
struct FederationRecord {
  std::vector<SpecialistShare> specialists;  ///< empty where a single model made the token
  double joint = 0;                          ///< nats: the joint's log-probability
  double log_normaliser = 0;                 ///< log Z over the vocabulary, for a product; else 0
  double residual = 0;                       ///< joint less what the parts above give
  /// [specialists] each one's own logit of the predicted token, and of the joint's runner-up, as a
  /// sum; empty where nothing was attributed. Layers go by their numbers in the log.
  std::vector<AttributionRecord> attributions = {};
};

/// What the model said after a token.
struct PredictionRecord {
  int32_t token = 0;              ///< the chosen id (generated), or the prompt's next id (scored)
  bool generated = true;          ///< false: it only scores the prompt
  float logprob = 0;              ///< nats, of `token`, before any sampler stage
  float entropy = 0;              ///< nats
  uint64_t logits_digest = 0;     ///< of the bits of the whole row of logits
                                  ///< (docs/numerics.md); 0: not recorded
  SampleDecision sampled;         ///< generated: how the sampler came to `token`
  ConstraintDecision constraint;  ///< generated: what a constraint ruled out; the
                                  ///< model's own first choice is alternatives[0]
  std::vector<AlternativeRecord> alternatives;  ///< the ten best, descending
  AttributionRecord attribution;  ///< the chosen token's logit as a sum, where it was recorded
  FederationRecord federation;    ///< how specialists came to `token`, where several did
};

/// The account of one input token: what happened in each layer while it was processed, and what
/// was predicted from it. The experts that made a generated token are those of the record whose
/// prediction chose it.
struct TokenRecord {
  uint64_t sequence = 0;                         ///< the engine's id of it
  int64_t position = 0;                          ///< in the sequence, from 0
  int32_t token = 0;                             ///< the input's id
  std::vector<LayerRecord> layers;               ///< in their order
  bool has_prediction = false;                   ///< false: the pass made no row for it
  PredictionRecord prediction;                   ///< valid with `has_prediction`
  std::vector<HiddenStateRecord> hidden_states;  ///< of the layers that were asked for; level full
};

/// Bytes of one pass's record: header, AuditToken[tokens], the pass's words, rounded up to 8.
/// Throws kBadFile where the layout contradicts itself (docs/audit-log.md) or the size overflows.
VITRINE_API size_t audit_record_bytes(const AuditLayout& layout, size_t rows, size_t tokens);

/// Decodes one pass's record (AuditPassHeader and what follows; any alignment). Throws kBadFile
/// where the sizes do not agree with the layout or an index is out of range; float values are
/// taken as they are. Thread-safe.
///
/// A prediction's token is the row's chosen id, which is the id that `chosen_logit` belongs to:
/// for a row that scores the prompt, the prompt's next id. Where `row_words` is 0, log-probability
/// and entropy are NaN.
VITRINE_API std::vector<TokenRecord> decode_pass(const AuditLayout& layout,
                                                 std::span<const std::byte> record);

/// A bounded ring of slabs between the step's thread and one reader.
///
/// reserve() and commit() cost the step's thread no system call: the reader polls. Where the ring
/// is full, kOverwrite forgets the oldest records (a bounded memory of the last ones) and kWait
/// waits for the reader before the next step.
class VITRINE_API SlabRing : public AuditSink {
 public:
  /// What the step's thread does where the ring is full.
  enum class WhenFull : uint8_t { kOverwrite, kWait };
  /// Allocates nothing yet; open() does.
  SlabRing(size_t capacity_bytes, WhenFull when_full);
  ~SlabRing() override;

  /// Allocates: at least `capacity_bytes`, and room for two records of `max_record_bytes`. A
  /// further call with the same layout and no larger record does nothing. A further call with
  /// another layout or a larger record forgets what is unread (and counts it as overwritten); no
  /// reader may be inside drain() then. Throws kBadFile for a layout that contradicts itself,
  /// kOutOfMemory.
  void open(const AuditLayout& layout, size_t max_record_bytes) override;
  /// Makes no allocation, lock or system call, except that kWait yields and sleeps while there is
  /// no room. A record reserved and not committed is replaced by the next reserve(). Throws
  /// kInvalidArgument before open() and for more than `max_record_bytes`.
  std::byte* reserve(size_t num_bytes) override;
  void commit() override;
  /// Reserves as reserve() does, but never waits: null where there is no room.
  std::byte* try_reserve(size_t num_bytes);

  /// Sets what the step's thread calls when it begins to wait (kWait), so that a sleeping reader
  /// can be woken. Set before use.
  void on_full(std::function<void()> callback);

  /// Calls `consume`, on the reader's thread, with each finished record, oldest first, then
  /// releases it. Returns how many there were. A record is read-only and valid during the call.
  /// Thread-safe against the step's thread for kWait; kOverwrite rings are drained between steps
  /// only. What `consume` throws passes through; that record counts as released. Throws
  /// kInvalidArgument for an empty `consume`.
  size_t drain(const std::function<void(std::span<const std::byte>)>& consume);
  /// Drains the ring, on the reader's thread, into structs.
  std::vector<TokenRecord> drain_records();
  /// Returns what open() was given last.
  const AuditLayout& layout() const;
  /// Returns how many records were overwritten unread.
  uint64_t overwritten() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Facts that stand at the head of a log.
struct LogHeader {
  std::string model_path;                                    ///< as it was given
  std::string architecture;                                  ///< "qwen3_moe"
  std::string device;                                        ///< "cpu", "cuda:0"
  std::string kernels;                                       ///< "fused", "reference"
  std::string isa;                                           ///< the instruction set: "avx512"
  int threads = 1;                                           ///< of the engine
  int32_t num_layers = 0;                                    ///< of the model
  int32_t vocab_size = 0;                                    ///< of the model
  uint64_t seed = 0;                                         ///< of the sampler
  std::vector<std::pair<std::string, std::string>> engine;   ///< option that changes bits, value
  std::vector<std::pair<std::string, std::string>> sampler;  ///< option, value
  std::vector<std::pair<std::string, std::string>> hashes;   ///< file, SHA-256
  /// The constraint, empty where there is none: kind, SHA-256 of its text, options.
  std::vector<std::pair<std::string, std::string>> constraint = {};
  /// Who guesses tokens ahead and how, empty where nobody does: drafter, options.
  std::vector<std::pair<std::string, std::string>> speculation = {};
  std::string host_name = {};  ///< of the machine, where it is to be told; or empty
};

/// What is known of a token's text. It is made of a piece alone where the bytes are not known.
struct TokenPiece {
  /// Takes the vocabulary's spelling, and the bytes where they are known.
  TokenPiece(std::string text_piece, std::optional<std::string> text_bytes = {})
      : piece(std::move(text_piece)), bytes(std::move(text_bytes)) {}
  std::string piece;                 ///< the vocabulary's own spelling: "Ġglass"
  std::optional<std::string> bytes;  ///< what the token adds to the text: " glass"
};

/// Writes a JSON log (docs/audit-log.md) from a thread of its own: to a temporary file beside
/// `path` that takes its name in finish(). Without finish() nothing is left behind.
class VITRINE_API JsonLog {
 public:
  /// Opens the temporary file now, so that an unwritable path fails before anything is generated
  /// (kIo; names the path). Throws kInvalidArgument where `path` is there and `overwrite` is not
  /// given, kUnsupported for an extension other than .json. `token_text` tells an id's text (may be
  /// empty); it is called from the log's thread, about once for each distinct id.
  JsonLog(const std::string& path, LogHeader header,
          std::function<TokenPiece(int32_t)> token_text = {}, bool overwrite = false);
  ~JsonLog();
  /// The sink to hand to Engine::set_audit_sink; take it away from there before the log ends. It
  /// waits for the log's thread where that falls behind. A log has one layout: open() throws
  /// kInvalidArgument for a second one. Its other functions throw kInvalidArgument after finish().
  AuditSink& sink();
  /// Called from the log's thread with each record, after it has been written. Set before use.
  void on_record(std::function<void(const TokenRecord&)> callback);
  /// Drains, writes the closing part, syncs, renames. Throws kIo (disk full, …); the old file at
  /// `path`, if any, is then whole. What `token_text` or the callback threw is thrown again here;
  /// no log is left then either. Call it once, after the last commit().
  void finish(const std::string& stop_reason);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Divides the records of steps that several sequences share, for hosts that serve many and owe an
/// account to each. Records of a sequence that has a sink of its own go to that sink, as if the
/// sequence had stepped alone (but the pass's number and time are the step's). All other records go
/// to one further sink, or nowhere. Where a sequence's sink has no room, that sequence's input
/// fails, and the step is made without it (Stepper::step); where the further sink has none, the
/// step fails. No other sink keeps a part of what failed.
///
///     SequenceSinks sinks(&everybody_else);
///     engine->set_audit_sink(&sinks);
///     sinks.add(sequence, log_of_this_answer);
///
/// It is used by one thread at a time, the steps' thread included.
class VITRINE_API SequenceSinks final : public AuditSink {
 public:
  /// `others`: what gets the rest (not owned; null: nobody).
  explicit SequenceSinks(AuditSink* others = nullptr);
  ~SequenceSinks() override;
  SequenceSinks(const SequenceSinks&) = delete;
  SequenceSinks& operator=(const SequenceSinks&) = delete;

  /// Gives a sequence a sink of its own (not owned). Call it for a sequence that has just been
  /// created, before its first step. Opens the sink once the layout is known, and tells it of the
  /// creation. Throws kInvalidArgument for a sequence that has a sink, and what the sink's open()
  /// throws.
  void add(uint64_t sequence, AuditSink& sink);
  /// Sends the sequence's records to the others' sink again. Does nothing for a sequence without a
  /// sink.
  void remove(uint64_t sequence);

  void open(const AuditLayout& layout, size_t max_record_bytes) override;
  std::byte* reserve(size_t num_bytes) override;
  void commit() override;
  /// Returns the sequence whose sink had no room last; 0: it was the others' sink.
  uint64_t failed_sequence() const override;
  void on_event(const AuditEvent& event) override;
  void on_failure(const ConstraintFailure& failure) override;
  void on_drafts(const DraftedPass& drafts) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vitrine

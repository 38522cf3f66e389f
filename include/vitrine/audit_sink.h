// SPDX-License-Identifier: Apache-2.0
// The room `core`: what a pass leaves behind, and the interface of who receives it (audit.h
// has Vitrine's own sinks).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "vitrine/combiner.h"
#include "vitrine/constraint.h"
#include "vitrine/core.h"

namespace vitrine {

/// How an engine records: not at all, by extra reads in the middle of a pass (for comparison), or
/// into the arena, which is read once behind the pass.
enum class AuditMode : uint8_t { kNone, kNaive, kDeferred };
/// How much is recorded: kFull adds the routers' distributions and what else is asked for.
enum class AuditLevel : uint8_t { kStandard, kFull };

/// What a router chooses experts by.
enum class RouterKind : uint8_t {
  kPlain,          ///< a softmax, of which the gate weights say all
  kSoftmaxScores,  ///< scores are a softmax over all experts
  kSigmoidScores,  ///< scores are the sigmoid of each expert's logit
};

/// Words of AuditLayout::constraint.
inline constexpr int kAuditConstraintWords = 4;

/// The best tokens that the output head reports with each row of logits.
inline constexpr int kAuditTopTokens = 10;

/// Where each audit value of a pass lies. All values are 4 bytes: float32 or int32; a digest takes
/// two of them.
///
/// A pass's bytes are: [rows] chosen ids (int32, at the head), then [rows] row records of
/// `row_words` words, then [tokens] token records of `token_words` words.
struct AuditLayout {
  /// Where the values of one layer lie.
  struct Layer {
    int32_t layer = 0;            ///< counts from 0
    int32_t residual_norm = -1;   ///< word offset in a token record: float, L2 norm of the residual
                                  ///< stream that enters this layer
    int32_t expert_ids = -1;      ///< word offset: int32[top_k]; -1 for a dense layer
    int32_t expert_weights = -1;  ///< word offset: float[top_k], slot order
    int32_t router_probs = -1;    ///< word offset: float[num_experts]; level full only, else -1
    int32_t router_scores = -1;   ///< word offset: float[top_k] scores, then float[top_k] selection
                                  ///< keys, slot order; -1: a plain router, or not recorded
    int32_t expert_norms = -1;    ///< word offset: float[top_k], L2 norm of what each expert gave
                                  ///< to the token, before its weight, slot order; -1: not recorded
    int32_t top_k = 0;            ///< routes of a token
    int32_t num_experts = 0;      ///< of the layer
    RouterKind router = RouterKind::kPlain;  ///< what it chooses by
    bool reads_embedding = false;  ///< the stream that enters it is the token's embedding, whose
                                   ///< norm tells the token
  };
  /// A term of a token's logit: what one part of the model added to it.
  struct Term {
    /// Which part of the model it is. kLayerInput: what a layer makes of its own vector of the
    /// token (gemma4's E form). kSoftCap: what the logits' cap takes from the sum of all others.
    enum class Kind : uint8_t {
      kEmbedding,
      kAttention,
      kDense,
      kExpert,
      kShared,
      kLayerInput,
      kSoftCap
    };
    Kind kind;           ///< which part of the model it is
    int32_t layer = -1;  ///< -1: outside of the layers
    int32_t slot = -1;   ///< kExpert: the route's slot
    /// Returns whether it is a part of a layer.
    bool is_of_layer() const { return kind != Kind::kEmbedding && kind != Kind::kSoftCap; }
    bool operator==(const Term&) const = default;
  };
  /// The residual stream between layers.
  struct HiddenState {
    int32_t layer = 0;    ///< the layer it enters; the number of layers: it leaves the last one
    int32_t values = -1;  ///< word offset in a token record: float[hidden_size]
    bool operator==(const HiddenState&) const = default;
  };
  AuditMode mode = AuditMode::kNone;         ///< how values are recorded
  AuditLevel level = AuditLevel::kStandard;  ///< how much is recorded
  std::vector<Layer> layers;                 ///< ascending
  /// Empty where nothing is attributed; in a federation each specialist's in turn.
  std::vector<Term> terms;
  std::vector<HiddenState> hidden_states;  ///< level full only; ascending layers
  int32_t hidden_size = 0;                 ///< valid where there are hidden states
  int32_t token_words = 0;                 ///< words of a token record
  int32_t row_words = 0;                   ///< words of a row record
  // Word offsets in a row record (valid where row_words > 0).
  int32_t chosen_logit = 0;   ///< float
  int32_t log_sum_exp = 0;    ///< float, nats: log-probability = logit - log_sum_exp
  int32_t entropy = 0;        ///< float, nats
  int32_t top_ids = 0;        ///< int32[kAuditTopTokens], -1 past the vocabulary
  int32_t top_logits = 0;     ///< float[kAuditTopTokens], descending
  int32_t logits_digest = 0;  ///< 64 bits, low word first: of the bits of the row's logits
  /// SampleDecision::candidates of a row that chose a token, int32.
  int32_t sampler_candidates = 0;
  int32_t sampler_probability = 0;  ///< SampleDecision::probability of that row, float
  /// The ConstraintDecision of a row that chose a token under a constraint: int32 allowed, float
  /// removed, float mask_microseconds, int32 flags (1 is_limited, 2 first_ruled_out, attempt * 4).
  /// -1: not recorded.
  int32_t constraint = -1;
  /// What several specialists add to each row where a federation made it.
  struct Federation {
    std::vector<std::string> specialists;           ///< names; empty: a single model
    std::string combiner;                           ///< Combiner::name()
    ShareKind shares = ShareKind::kResponsibility;  ///< what a share means
    /// Word offset in a row record. Numbers are float64 in two words, low word first: for each
    /// specialist log-probability, weight and share; then the joint's log-probability, the
    /// log-normaliser and the residual: the joint less what its parts give.
    int32_t values = -1;
    /// [specialists] how many of AuditLayout::terms are each one's; empty: nothing is attributed.
    std::vector<int32_t> num_terms = {};
    /// Returns how many words a row has for it.
    int32_t num_words() const {
      return specialists.empty() ? 0 : 2 * (3 * static_cast<int32_t>(specialists.size()) + 3);
    }
    bool operator==(const Federation&) const = default;
  };
  Federation federation;  ///< no specialists: a single model
  /// Word offset: float[terms] of the chosen token, then float[terms] of the runner-up, which is
  /// the best token that was not chosen. A federation's record has, for each specialist in turn,
  /// its own logits of the two tokens, float[2], and behind these its terms of both; the runner-up
  /// is the joint's.
  int32_t attribution = 0;

  /// Returns the words of one pass.
  size_t pass_words(size_t rows, size_t tokens) const {
    return rows * (1 + static_cast<size_t>(row_words)) + tokens * static_cast<size_t>(token_words);
  }
};

/// One input token of a pass, known to the host before the pass runs.
struct AuditToken {
  uint64_t sequence = 0;  ///< the engine's id of it
  int32_t position = 0;   ///< in the sequence, from 0
  int32_t token = 0;      ///< its id
  int32_t row = -1;       ///< which row of logits this token's output made; -1: none
  int32_t generated = 0;  ///< 1 where that row chose the sequence's next token, 0 where it only
                          ///< scores the prompt
};

/// A pass's record in a slab: this header, then AuditToken[num_tokens], then the pass's words.
struct AuditPassHeader {
  uint64_t pass = 0;        ///< counts from 0
  uint32_t num_tokens = 0;  ///< of the pass
  uint32_t num_rows = 0;    ///< of logits
  uint64_t num_bytes = 0;   ///< of the whole record, header included; a multiple of 8
  uint64_t step_ns = 0;     ///< nanoseconds of the step by the host's clock, its sampling included
};

/// What happened to a sequence between passes. Whoever accounts for positions needs it: a fork has
/// positions that no pass made, a truncation takes back some that one did.
struct AuditEvent {
  /// What happened.
  enum class Kind : uint8_t {
    kCreated,
    kForked,
    kTruncated,
    kReleased,
    kCopied,  ///< the records of the next positions are copies: an earlier request computed them
  };
  Kind kind = Kind::kCreated;  ///< what happened
  uint64_t sequence = 0;       ///< the engine's id of it
  /// kForked: the sequence whose past it shares. kCopied: a digest of where the records are from.
  uint64_t source = 0;
  int64_t length = 0;  ///< positions that the sequence has after the event; kReleased: that it had;
                       ///< kCopied: that it will have behind the copies
  int64_t before = 0;  ///< kTruncated: positions that it had
};

/// What was guessed for one pass of a sequence (Drafter), and what came of it.
struct DraftedPass {
  uint64_t sequence = 0;             ///< the engine's id of it
  int64_t position = 0;              ///< where the first guess stood, behind the last known token
  std::string drafter = {};          ///< Drafter::name() of who guessed
  std::vector<int32_t> tokens = {};  ///< the guesses that the pass checked
  /// [tokens] the index of the guess behind which each one stood, below its own index; -1: it stood
  /// behind the last known token. Empty: the guesses are a chain.
  std::vector<int32_t> parents = {};
  /// Indexes of the guesses that were right: a path, from the first position on.
  std::vector<int32_t> accepted = {};
  /// Positions that the pass computed and that were taken back: guesses that were wrong, and those
  /// that stood behind an end that came in the middle.
  int32_t discarded = 0;
  bool operator==(const DraftedPass&) const = default;
};

/// Receives one slab a pass. The engine calls it from the step's thread only; it may not read
/// anything back from the device, block for longer than its policy says, or change anything.
class VITRINE_API AuditSink {
 public:
  virtual ~AuditSink() = default;
  /// Called once, before the first pass, with the layout of all later passes and the bytes of the
  /// largest record.
  virtual void open(const AuditLayout& layout, size_t max_record_bytes) = 0;
  /// Returns memory (8-byte aligned) for one pass's record of `num_bytes`, which the engine fills
  /// whole. A sink that cannot keep it throws here: the step is undone. A record that is reserved
  /// and not committed (another sink of the step had no room) is forgotten with the next reserve().
  virtual std::byte* reserve(size_t num_bytes) = 0;
  /// Called when the record reserved last is complete. Should not throw: what other sinks of the
  /// same step have committed before stays with them.
  virtual void commit() = 0;
  /// Returns, where reserve() or commit() threw, the sequence whose record it could not keep, so
  /// that the others' records can be kept without that; 0: it could keep none.
  virtual uint64_t failed_sequence() const { return 0; }
  /// Called when a sequence was created, forked, truncated or released: between passes, after
  /// open(), and while the recorder is off, too. Must not throw.
  virtual void on_event(const AuditEvent& event) { (void)event; }
  /// Called as on_event() is, when generate() had to give up an answer or an attempt at one.
  virtual void on_failure(const ConstraintFailure& failure) { (void)failure; }
  /// Called as on_event() is, when generate() checked guesses in a pass, whose record is complete.
  virtual void on_drafts(const DraftedPass& drafts) { (void)drafts; }
};

}  // namespace vitrine

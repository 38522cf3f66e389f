// SPDX-License-Identifier: Apache-2.0
// The room `speculate`: drafters of Vitrine's own, and when it pays to ask one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vitrine/drafter.h"

namespace vitrine {

/// How drafters of Vitrine's own guess.
struct DrafterOptions {
  /// A guess goes on as it did where so many tokens before it are the same, at least.
  int32_t min_match = 2;
  /// `suffix`: a guess ends where its probability, by what followed before, is below this.
  float min_probability = 0.1F;
  /// `suffix`: tokens of finished answers that are kept, the newest, in each scope. 28 bytes
  /// a token, of a number of them that is rounded up to a power of two.
  int64_t shared_tokens = int64_t{1} << 16;
  int32_t max_scopes = 16;  ///< `suffix`: scopes that are kept; the one used longest ago goes
};

/// Returns the names that make_drafter() knows, ascending: "ngram", "suffix".
VITRINE_API std::vector<std::string> drafter_names();
/// Makes one of them. `ngram`: what followed the longest same piece of the text itself, the newest
/// one. `suffix`: what most often followed the end of the text, in it and in finished answers of
/// its scope (docs/speculation.md). Neither allocates in a step. Throws kInvalidArgument for
/// another name and for options out of range.
VITRINE_API std::unique_ptr<Drafter> make_drafter(std::string_view name,
                                                  const DrafterOptions& options = {});

/// Makes a drafter of one that keeps a text when its answer is over, for the next turn of a
/// conversation: the next turn shows it only what is new, from the first token that differs. This
/// is for drafters that compute (a draft model, heads, an MTP layer), whose texts are dear; `ngram`
/// and `suffix` need none. One text at a time is kept, of at most `max_tokens` (a context), for
/// answers of the same scope and GenerateOptions::cancelled; an answer beside it has one of its
/// own.
VITRINE_API std::unique_ptr<Drafter> keep_text(std::unique_ptr<Drafter> drafter,
                                               int64_t max_tokens);

/// States what a pass over so many tokens of one sequence costs.
struct PassCost {
  int32_t tokens = 1;  ///< tokens of one sequence, each with a row of logits
  double seconds = 0;  ///< time that the pass takes, in any unit that all costs share
};

/// The costs of passes by their tokens.
class VITRINE_API PassCosts {
 public:
  /// Makes a table without costs.
  PassCosts() = default;
  /// Makes a table of these costs. Throws kInvalidArgument where no pass of one token is among
  /// them, and for a count or a cost that is not above 0, or a count twice.
  explicit PassCosts(std::vector<PassCost> costs);
  /// Returns true where there are no costs.
  bool empty() const { return costs_.empty(); }
  /// Returns what a pass of so many tokens costs, where a pass of one token costs 1. Between two
  /// known costs it lies on the line through them, behind the last one on the last line's
  /// continuation. At least 1; NaN where there are no costs.
  double of(int32_t tokens) const;
  /// Returns what a pass of one token costs, in the unit of the table; 0 where there are none.
  double of_one() const { return costs_.empty() ? 0 : costs_.front().seconds; }
  /// Returns what it was made of, by tokens.
  const std::vector<PassCost>& all() const { return costs_; }

 private:
  std::vector<PassCost> costs_;
};

/// How a pass checks its guesses.
enum class DraftAcceptance : uint8_t {
  /// Each token is chosen as it is without guesses, by the random numbers of its position, and a
  /// guess is right where it is that token: the answer is the same to the bit.
  kNoise,
  /// Rejection sampling (Leviathan et al., arXiv 2211.17192), to compare with papers: guess x stays
  /// with the probability p(x) that the whole pipeline gives it, by a random number of its own;
  /// else another token is drawn from p without x. Tokens have the distribution that they have
  /// without guesses, and the answer is another one, which depends on what was guessed. Greedily it
  /// is kNoise. Guesses are chains, and the host draws.
  kRejection,
};

/// How an answer is guessed ahead.
struct SpeculationOptions {
  /// Who guesses (not owned); null: nobody.
  Drafter* drafter = nullptr;
  /// DraftText::scope of the answer.
  std::string scope = {};
  int32_t max_drafts = 8;  ///< guesses that a pass brings at most, 1 to kMaxDrafts
  /// The most guesses on a path, where guesses may be a tree; 0: they are a chain. Trees need fused
  /// kernels, no federation and a model that keeps no state of a sequence.
  int32_t max_depth = 0;
  /// What passes cost; empty: no gate, every pass brings as many drafts as there are.
  PassCosts costs = {};
  /// What a call of the drafter takes, in the unit of `costs`. Not set: the first calls are timed
  /// (DraftCallCosts), so `costs` must be in seconds. With a number here an answer is made in the
  /// same passes each time.
  std::optional<double> draft_cost = {};
  /// Below this utility (tokens a pass over what a pass costs, 1 without drafts) the
  /// drafter is not asked for a while. Finite, 0 or more.
  double threshold = 1.0;
  DraftAcceptance acceptance = DraftAcceptance::kNoise;  ///< how guesses are checked
};
/// The most drafts of one pass.
inline constexpr int32_t kMaxDrafts = 255;

/// What speculation did in one answer. Names as vLLM has them.
struct VITRINE_API SpeculationCounts {
  std::string drafter = {};               ///< who guessed; empty: nobody was asked for
  int64_t num_passes = 0;                 ///< passes that chose a token, with drafts or without
  int64_t num_spec_steps = 0;             ///< passes that chose a token and had drafts
  int64_t num_draft_tokens = 0;           ///< drafts that were checked
  int64_t num_accepted_draft_tokens = 0;  ///< drafts that were right
  int64_t num_rejected_passes = 0;        ///< passes with drafts that ended in a wrong one
  int64_t num_discarded_tokens = 0;       ///< positions that were computed and taken back
  int64_t num_paused_passes = 0;          ///< passes in which the gate asked nobody
  /// Guesses that the drafter's own check replaced by others before the model saw any
  /// (DraftProposal::replaced).
  int64_t num_replaced_draft_tokens = 0;
  /// [max_drafts + 1] passes with drafts, by how many of the drafts were right.
  std::vector<int64_t> acceptance_histogram = {};
  double draft_seconds = 0;  ///< time that the drafter took, upkeep counted
  /// Time that passes with drafts took, from the input until its outputs were handed back, with
  /// what else stood in their steps.
  double verify_seconds = 0;
  double rejected_seconds = 0;  ///< the part of verify_seconds that wrong drafts take, by their
                                ///< share of each pass's tokens
  DraftMemory memory = {};      ///< what the drafter held at the end, all its texts together
  std::string problem = {};     ///< why it was not asked any more; empty: it did as it should
  /// Returns tokens a pass with drafts: those that were right, and the one behind them. 0 where
  /// there was none.
  double mean_acceptance_length() const;
  /// Returns the share of drafts that were right; 0 where there was none.
  double draft_acceptance_rate() const;
  /// Adds the counts of another answer; of `memory` the larger numbers stay.
  SpeculationCounts& operator+=(const SpeculationCounts& other);
};

/// What a call of a drafter costs, by how many drafts it asks for: the shortest of the first few
/// calls for each number, and between two numbers the line through their costs. Not thread-safe.
class DraftCallCosts {
 public:
  /// Adds a call with its cost, in any unit. The drafter's first call may be longer: it reads the
  /// text before.
  VITRINE_API void add(int32_t drafts, double cost);
  /// Returns what a call for so many drafts costs; 0 before the second call.
  VITRINE_API double of(int32_t drafts) const;
  int64_t num_calls() const { return num_calls_; }  ///< calls that were added

 private:
  void drop_first(int32_t drafts, double cost);

  struct Call {
    int32_t drafts, times;
    double cost;
  };
  std::vector<Call> calls_;  // by drafts
  int64_t num_calls_ = 0;
};

/// When it pays to ask a drafter, and how many drafts are worth a pass: utility = tokens a pass
/// over what pass and drafter cost (Cascade, arXiv 2506.20675). It depends on counts and the table
/// alone, and on no clock but for what a drafter costs where that is not given, so that an answer
/// is made in the same passes each time. It begins with the length that pays most by the table if
/// half of the drafts are right, and goes on with what is; where passes have lost half a pass, and
/// no passes before won that, it asks nobody for a while, then tries again, and waits twice as long
/// after each failure, and at least so long that trials which fail cost no more than 2 % of all
/// passes. A drafter that cannot pay if all it says is right is not asked a third time. Not
/// thread-safe.
class VITRINE_API DraftGate {
 public:
  /// Uses the options' max_drafts, costs, draft_cost and threshold. Without costs it always answers
  /// max_drafts.
  explicit DraftGate(const SpeculationOptions& options);
  /// Returns how many drafts the next pass may bring: 0 in a pause. Changes nothing.
  int32_t limit() const;
  /// Tells it how long a call of the drafter took that asked for so many drafts (0: limit()).
  void drafted(double seconds, int32_t asked = 0);
  /// Tells it of each pass that chose how many drafts it brought, and how many were right. A pass
  /// for which the drafter was asked in vain has none.
  void pass(int32_t proposed, int32_t accepted);

 private:
  double call_cost(int32_t drafts) const { return given_cost_ ? *given_cost_ : calls_.of(drafts); }
  double cost_of(int32_t drafts) const { return costs_.of(drafts + 1) + call_cost(drafts); }
  int32_t best_length() const;
  bool can_pay() const;
  void begin_pause();
  void learn(int32_t proposed, int32_t accepted);

  PassCosts costs_;
  double threshold_;
  int32_t max_drafts_, length_ = 1;
  std::optional<double> given_cost_;  // of a call, in passes of one token
  DraftCallCosts calls_;              // where it is not given
  bool was_called_ = false;           // for the pass under way
  int32_t asked_ = 0;                 // drafts, by that call
  int64_t pause_ = 0, next_pause_;
  int32_t passes_ = 0;  // since the last pause
  double credit_ = 0;   // tokens over the threshold's, of late
  double loss_ = 0;     // passes of one token over tokens, since the last pause
  double acceptance_;   // of a draft whose ones before were right, as it was lately
};

}  // namespace vitrine

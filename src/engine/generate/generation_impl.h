// SPDX-License-Identifier: Apache-2.0
// One answer that is being made: what stands between its steps.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/generate/constraint_guide.h"
#include "engine/generate/generation_sequence.h"
#include "engine/generate/jump_forward.h"
#include "engine/generate/speculation.h"
#include "vitrine/audit_sink.h"
#include "vitrine/engine.h"

namespace vitrine {

// Between two steps an answer stands in a stretch: tokens that are known and have to be computed,
// which are the prompt, or the token that was chosen last with those that a constraint forces
// behind it. A stretch ends with a choice, or with the end of an attempt.
struct Generation::Impl {
  using GenerationClock = std::chrono::steady_clock;
  Impl(Stepper& stepper, std::span<const int32_t> prompt, const GenerateOptions& options,
       std::function<bool(const TokenEvent&)> on_token);
  StepInput next_input(int64_t most_tokens, int64_t most_rows);
  void accept(std::span<const StepOutput> outputs);
  void cancel();
  // Runs work that follows the constraint, and records where the constraint stood when it threw.
  // The answer has finished then, as it has where anything else is thrown.
  template <typename Work>
  void telling_errors(Work&& work) {
    try {
      work();
    } catch (const Error& error) {
      abandon();
      if (!guide_ || guide_->problem().empty()) throw;
      throw Error(error.kind(), error.what() + tell_error());
    } catch (...) {
      abandon();
      if (guide_ && !guide_->problem().empty()) tell_error();
      throw;
    }
  }

  void begin_constraint();
  void begin_speculation();
  /// Returns true where the next pass is of one token and chooses what follows.
  bool may_draft() const;
  /// Returns how many guesses leave room for a token behind them.
  int64_t most_drafts() const;
  void ask();
  /// Returns how many guesses the next pass wants for which nobody was asked yet.
  int32_t wanted() const;
  void add_drafts(int64_t most);
  /// Returns where the next token of the answer stands.
  int64_t position() const;
  /// Takes back what a pass computed behind the end, and tells of it. The last token is not
  /// computed.
  void cut_behind_end();
  /// Ends the answer where it stands, whatever it came to.
  void abandon();
  // Begins the stretch of the prompt, whose last token goes with those that are forced behind it.
  void begin();
  // Begins a stretch of the pending tokens. `chooses`: the last one's row chooses what follows;
  // else the last one is not computed.
  void feed(bool chooses);
  void end_stretch();
  /// Tells the host how many tokens of the prompt are done; returns whether it goes on.
  bool tell_progress(int64_t done);
  /// Makes room in a full context for the token that was chosen: the next stretch is that token
  /// behind what is kept and has to be computed again.
  void shift();
  // Takes the token that was chosen. Returns false where the attempt ends with it, or with what is
  // forced behind it.
  bool take_choice();
  void end_attempt();
  // Begins another attempt from the prompt's last token, with other random numbers. Returns false
  // where that is over at once.
  bool begin_attempt();
  void finish();
  /// Records where the constraint stood when an attempt ended.
  void tell(ConstraintFailure::Kind kind, int32_t refused = -1);
  /// Records where the constraint stood when it threw; returns that in words, to stand behind a
  /// message.
  std::string tell_error();
  /// Makes the next token's mask. Returns false where the answer ends here; result_.reason says
  /// why.
  bool is_led_on();
  // Returns true where someone wants the rows of forced tokens, which are recorded then.
  bool wants_forced_rows() const;
  /// Returns true while the stretch's rows score the prompt for GenerateResult::prompt_logprobs.
  bool scores_prompt() const;
  void add_prompt_scores(std::span<const StepOutput> outputs);
  /// Takes the outputs of a pass. Returns false where the answer ended with a guess that was right.
  bool take_outputs(std::span<const StepOutput> outputs);
  void find_path(std::span<const StepOutput> outputs);
  /// Throws what its input met, where it failed alone.
  void check_failures();
  /// Notes what a sink is to be told of the guesses that find_path() looked at.
  void note_drafts();
  void tell_drafts();
  void observe();
  void add_choice(const StepOutput& output);
  void add_forced(std::span<const StepOutput> outputs);
  /// Takes in the tokens that the constraint forces behind one that is not computed yet, until
  /// pending_ holds all of them. Returns false where the answer ends there.
  bool jump();
  /// Does what jump() does, behind the prompt.
  bool begin_jump();
  bool is_end(int32_t token) const;
  /// Adds a token to the answer. Returns false where the answer ends with it.
  bool take(int32_t token, bool is_complete, bool is_refused = false);
  /// Returns true where the answer does not stand and there is an attempt left.
  bool should_retry();
  struct Stretch {
    std::span<const int32_t> tokens;
    size_t done = 0;       // how many of them have been computed
    int32_t next = -1;     // the token that follows the last one, where it is known
    bool chooses = false;  // the last one's row chooses what follows
    bool is_prompt = true;
  };
  Stepper& stepper_;
  const std::vector<int32_t> prompt_;
  const GenerateOptions options_;
  std::function<bool(const TokenEvent&)> on_token_;
  engine::GenerationSequence sequence_;
  int64_t held_, room_ = 0;
  int64_t dropped_ = 0;           // positions that shifts of the context dropped
  std::vector<int32_t> pending_;  // not computed yet: a token, and what is forced behind it
  SamplerPipeline sampler_;
  StepInput input_;
  int64_t input_begin_ = 0;   // where the input's tokens stand
  std::vector<size_t> path_;  // outputs that count of a pass that chose
  DraftedPass drafted_;       // what a sink is to be told; without tokens: nothing
  Stretch stretch_;
  std::optional<engine::ConstraintGuide> guide_;
  std::optional<engine::JumpForward> jump_;
  std::optional<engine::Speculation> speculation_;
  int32_t attempt_ = 0, unmasked_attempts_ = 0, next_ = -1;
  bool is_masked_ = true;  // until a deadlock
  bool is_split_ = false;  // the prompt's last token is pending
  bool goes_on_ = false;   // a choice stands at the end of the stretch, or of the one behind it
  bool chooses_ = false;   // the input that was given last ends with a choice
  bool has_prefilled_ = false, is_finished_ = false;
  GenerationClock::time_point start_ = GenerationClock::now();
  GenerateResult result_;
};

}  // namespace vitrine

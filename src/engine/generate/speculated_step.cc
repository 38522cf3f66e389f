// SPDX-License-Identifier: Apache-2.0
// What an answer's steps do with the tokens that they choose, and with those that are guessed
// ahead.
#include <algorithm>

#include "engine/generate/generation_impl.h"
#include "engine/run/audit_layout.h"
#include "engine/run/logprobs.h"

namespace vitrine {

void Generation::Impl::begin_speculation() {
  // Nothing follows them under a constraint; else what the host says.
  std::vector<int32_t> ends;
  if (guide_ || !options_.ignore_end_of_text) {
    ends = stepper_.summary().eos_token_ids;
    ends.insert(ends.end(), options_.stop_token_ids.begin(), options_.stop_token_ids.end());
  }
  engine::SpeculatedAnswer answer{
      stepper_.tokens(sequence_.id()),   prompt_,       room_, stepper_.summary().vocab_size, ends,
      stepper_.options().feature_layers, sequence_.id()};
  answer.sampler = &sampler_;
  answer.cancelled = options_.cancelled;
  answer.ended = stepper_.options().cancelled;
  answer.kv_bytes = stepper_.options().kv_bytes;
  answer.draft_kv_bytes = stepper_.options().draft_kv_bytes;
  // Under the masks of a tree the host chooses, whose last bits are not those of a device.
  const StepperTraits traits = stepper_.traits();
  answer.runs_trees = traits.runs_trees && !(guide_ && traits.samples_on_device);
  answer.lender = stepper_.thread_lender();
  speculation_.emplace(options_.speculation, answer);
}

bool Generation::Impl::may_draft() const {
  return speculation_ && is_masked_ && !stretch_.is_prompt && stretch_.chooses &&
         stretch_.tokens.size() == 1;
}

int64_t Generation::Impl::most_drafts() const {
  const EngineOptions& limits = stepper_.options();
  return std::min<int64_t>({limits.max_step_tokens - 1, limits.max_logit_rows - 1,
                            room_ - std::ssize(result_.tokens) - 1});
}

int32_t Generation::Impl::wanted() const {
  return may_draft() && !is_finished_ ? speculation_->wanted(most_drafts()) : 0;
}

void Generation::Impl::ask() {
  const int32_t count = wanted();
  if (count > 0) speculation_->ask(count, guide_ ? &*guide_ : nullptr, jump_ ? &*jump_ : nullptr);
}

void Generation::Impl::add_drafts(int64_t most) {
  ask();
  input_.tokens = speculation_->step_tokens(stretch_.tokens.front(), most);
  input_.num_drafts = static_cast<int32_t>(input_.tokens.size()) - 1;
  input_.draft_parents = speculation_->step_parents();
  speculation_->begin_pass(position());
  if (!guide_) return;
  input_.guide = input_.num_drafts > 0 ? &*speculation_ : nullptr;
  input_.allowed_tokens = input_.num_drafts > 0 ? std::span<const uint32_t>() : guide_->mask();
}

int64_t Generation::Impl::position() const {
  return held_ + result_.prompt_tokens - dropped_ + std::ssize(result_.tokens);
}

void Generation::Impl::cut_behind_end() {
  if (!speculation_ || result_.tokens.empty()) return;
  const int64_t taken_back = sequence_.cut(position() - 1);
  speculation_->discard(taken_back);
  drafted_.discarded += static_cast<int32_t>(taken_back);
}

void Generation::Impl::abandon() {
  is_finished_ = true;
  if (!speculation_) return;
  cut_behind_end();
  tell_drafts();
  speculation_->release(false);
  result_.speculation = speculation_->counts();
}

bool Generation::Impl::wants_forced_rows() const {
  const bool is_recorded =
      stepper_.audit_sink() != nullptr && stepper_.audit_layout().mode != AuditMode::kNone;
  return options_.logprobs >= 0 || is_recorded;
}

bool Generation::Impl::take_outputs(std::span<const StepOutput> outputs) {
  find_path(outputs);
  observe();
  if (scores_prompt()) {
    add_prompt_scores(outputs);
  } else if (input_.num_drafts == 0) {
    add_forced(outputs);
  }
  if (!chooses_) return true;
  for (size_t i = 0; i < path_.size(); ++i) {
    const StepOutput& output = outputs[path_[i]];
    next_ = output.token;
    add_choice(output);
    const bool is_draft = i + 1 < path_.size();
    if (is_draft && !take(next_, !guide_ || guide_->is_complete())) return false;
  }
  return true;
}

// Which outputs count: the one behind the known tokens, then those of drafts that were right. The
// sequence holds these, and no other.
void Generation::Impl::find_path(std::span<const StepOutput> outputs) {
  path_.clear();
  if (!chooses_) return;
  const auto drafts = input_.tokens.last(static_cast<size_t>(input_.num_drafts));
  const std::span<const int32_t> parents = input_.draft_parents;  // the known token's is 0
  const size_t row = outputs.size() - 1 - drafts.size();
  path_.push_back(row);
  bool is_rejected = false;  // by the last one of the path
  for (size_t i = 0; i < drafts.size(); ++i) {
    const size_t parent = row + (parents.empty() ? i : static_cast<size_t>(parents[i]));
    if (parent != path_.back()) continue;
    is_rejected = outputs[parent].token != drafts[i];
    if (!is_rejected) path_.push_back(row + i + 1);
  }
  if (!speculation_) return;
  const auto accepted = static_cast<int64_t>(path_.size()) - 1;
  speculation_->end_pass(std::ssize(drafts), accepted, is_rejected);
  if (drafts.empty()) return;
  sequence_.cut(position() + accepted);
  if (stepper_.audit_sink() != nullptr) note_drafts();
}

void Generation::Impl::note_drafts() {
  const auto drafts = input_.tokens.last(static_cast<size_t>(input_.num_drafts));
  drafted_.sequence = input_.sequence;
  drafted_.position = position();
  drafted_.drafter = speculation_->counts().drafter;
  drafted_.tokens.assign(drafts.begin(), drafts.end());
  drafted_.parents.clear();
  for (const int32_t parent : input_.draft_parents) drafted_.parents.push_back(parent - 1);
  drafted_.accepted.clear();
  for (size_t i = 1; i < path_.size(); ++i) {
    drafted_.accepted.push_back(static_cast<int32_t>(path_[i] - path_[0]) - 1);
  }
  drafted_.discarded = static_cast<int32_t>(drafts.size() - drafted_.accepted.size());
}

void Generation::Impl::tell_drafts() {
  if (drafted_.tokens.empty()) return;
  engine::tell_sink(stepper_.audit_sink(), drafted_);
  drafted_.tokens.clear();
}

// Shows the drafter what the model computed for the tokens that stay.
void Generation::Impl::observe() {
  if (!speculation_ || !speculation_->observes()) return;
  const std::span<const float> rows = stepper_.features(sequence_.id());
  if (rows.empty()) return;
  const size_t width = rows.size() / input_.tokens.size();
  const size_t known = input_.tokens.size() - static_cast<size_t>(input_.num_drafts);
  speculation_->observe(input_begin_, rows.first(known * width));
  for (size_t i = 1; i < path_.size(); ++i) {
    const size_t token = known - 1 + path_[i] - path_[0];
    speculation_->observe(input_begin_ + static_cast<int64_t>(known - 1 + i),
                          rows.subspan(token * width, width));
  }
}

void Generation::Impl::add_choice(const StepOutput& output) {
  if (options_.logprobs >= 0) {
    result_.logprobs.push_back(token_logprobs(output.scores, next_, options_.logprobs));
  }
  if (guide_ && is_masked_) guide_->accept(next_, output.constraint);
}

void Generation::Impl::add_forced(std::span<const StepOutput> outputs) {
  if (options_.logprobs < 0) return;
  const size_t last = outputs.size() - (chooses_ ? 1 : 0);
  for (size_t i = last - static_cast<size_t>(input_.num_forced); i < last; ++i) {
    const size_t behind = input_.tokens.size() - (outputs.size() - i) + 1;
    const int32_t token = behind < input_.tokens.size() ? input_.tokens[behind] : input_.next_token;
    result_.logprobs.push_back(token_logprobs(outputs[i].scores, token, options_.logprobs));
  }
}

// What a full context computes again was scored before.
bool Generation::Impl::scores_prompt() const {
  return options_.prompt_scores >= 0 && stretch_.is_prompt && !has_prefilled_;
}

void Generation::Impl::add_prompt_scores(std::span<const StepOutput> outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool is_last = i + 1 == outputs.size();
    const int32_t next = is_last ? input_.next_token : input_.tokens[i + 1];
    if (next < 0) return;  // the row that chooses, or that nothing follows
    result_.prompt_logprobs.push_back(
        token_logprobs(outputs[i].scores, next, options_.prompt_scores));
  }
}

bool Generation::Impl::is_end(int32_t token) const {
  const std::vector<int32_t>&ends = stepper_.summary().eos_token_ids,
        &more = options_.stop_token_ids;
  return std::ranges::find(ends, token) != ends.end() ||
         std::ranges::find(more, token) != more.end();
}

bool Generation::Impl::take(int32_t token, bool is_complete, bool is_refused) {
  const int64_t position = this->position();
  result_.tokens.push_back(token);
  if (speculation_) speculation_->commit(token);
  const auto ends = [&](StopReason reason) {
    result_.reason = reason;
    return false;
  };
  const auto logprobs = std::span<const TokenLogprobs>(result_.logprobs);
  const size_t known = std::min(logprobs.size(), result_.tokens.size());
  const TokenEvent event{
      token, position, attempt_, is_complete, logprobs.first(known), result_.prompt_logprobs};
  if (on_token_ && !on_token_(event)) {
    return ends(StopReason::kCancelled);
  }
  if (is_refused) {  // the attempt is over
    tell(ConstraintFailure::Kind::kRefused, token);
    return ends(StopReason::kDeadlock);
  }
  // Under a constraint nothing can follow an end.
  if ((guide_ || !options_.ignore_end_of_text) && is_end(token)) {
    return ends(StopReason::kEndOfText);
  }
  const bool is_long = static_cast<int64_t>(result_.tokens.size()) >= options_.max_new_tokens;
  if (!is_long && (options_.context_shift || position < stepper_.options().max_context)) {
    return true;
  }
  if (guide_ && !guide_->is_complete()) {
    tell(ConstraintFailure::Kind::kUnfinished);
    if (!is_masked_) return ends(StopReason::kDeadlock);
  }
  if (!is_long) return ends(StopReason::kContextFull);
  return ends(guide_ && is_masked_ && guide_->is_at_its_end() ? StopReason::kComplete
                                                              : StopReason::kLength);
}

void Generation::draft(std::span<Generation* const> answers) {
  std::vector<Impl*> left;
  for (Generation* answer : answers) {
    if (answer != nullptr && answer->impl_->wanted() > 0) left.push_back(answer->impl_.get());
  }
  while (!left.empty()) {
    Drafter* const drafter = left.front()->speculation_->drafter();
    std::vector<Impl*> those, others;
    for (Impl* one : left) {
      (one->speculation_->drafter() == drafter ? those : others).push_back(one);
    }
    std::vector<engine::Speculation*> texts;
    std::vector<DraftProposal> proposals;
    for (Impl* one : those) {
      proposals.push_back(one->speculation_->request(one->wanted()));
      texts.push_back(&*one->speculation_);
    }
    engine::Speculation::ask_together(*drafter, texts, proposals);
    for (size_t i = 0; i < those.size(); ++i) {
      those[i]->speculation_->take(proposals[i], those[i]->guide_ ? &*those[i]->guide_ : nullptr,
                                   those[i]->jump_ ? &*those[i]->jump_ : nullptr);
    }
    left = std::move(others);
  }
}

}  // namespace vitrine

// SPDX-License-Identifier: Apache-2.0
// What the scheduler keeps of prompts and answers for those that come later.
#include <algorithm>
#include <utility>

#include "serve/adapter_name.h"
#include "serve/host_error.h"
#include "serve/scheduler.h"
#include "serve/thread_seconds.h"

namespace vitrine::serve {

namespace {

constexpr int64_t kWorthWaiting = 64;  // tokens that another one is computing already
constexpr int64_t kToldBlock = 64;     // ids, where the engines have blocks of their own

}  // namespace

void Scheduler::clear_cache() {
  for (PrefixTree::Node* node : pinned_) PrefixTree::drop(node);
  pinned_.clear();
  tree_.clear();
  tell_blocks();
}

void Scheduler::keep_in(Engine& engine, std::unique_ptr<PrefixStore> store) {
  stored_ = std::make_unique<StoredPrefixes>(
      engine, tree_, tap_, std::move(store), [this] { return evict(); }, options_.audit);
}

void Scheduler::store_prefixes() {
  if (stored_ != nullptr) stored_->store_all();
}

void Scheduler::tell_blocks_to(KvBlockListener& listener, const std::string& model) {
  std::vector<std::string> adapters;
  for (const std::string& folder : stepper_.options().adapters) {
    adapters.push_back(adapter_name(folder));
  }
  const int64_t block_size = stepper_.options().kv_block_size;
  teller_ = std::make_unique<BlockTeller>(listener, model, block_size > 0 ? block_size : kToldBlock,
                                          std::move(adapters));
  tree_.tell_blocks(*teller_);
}

void Scheduler::tell_blocks() {
  if (teller_ == nullptr) return;
  const double begin = thread_seconds();
  teller_->tell(clock_(), [this] { tree_.store_blocks(); });
  telemetry_.scheduler_seconds += thread_seconds() - begin;
}

// Log-probabilities of a prompt, and an account where nothing was recorded before, need all of it.
bool Scheduler::may_reuse(const Job& job) const {
  return options_.cache_prefixes && job.use_cache && !job.options.prompt_logprobs &&
         (job.audit == nullptr || keeps_words_);
}

PrefixTree::Match Scheduler::find(const Job& job) const {
  if (!may_reuse(job)) return {};
  // The last token is computed in any case: its logits say what comes next.
  return tree_.find({job.adapter, job.cache_scope},
                    std::span(job.prompt).first(job.prompt.size() - 1));
}

// Below 0 where it is better to wait for what another one is computing.
int64_t Scheduler::uncached_tokens(Job& job) {
  PrefixTree::Match match = find(job);
  if (stored_ != nullptr && !job.knows_store && may_reuse(job)) {
    const auto own = std::span(job.prompt).first(job.prompt.size() - 1);
    const double waited = clock_() - job.ready;
    if (stored_->awaits({job.adapter, job.cache_scope}, own, match.length, waited)) return -1;
    job.knows_store = true;
  }
  const int64_t kept = tree_.num_prefixes();
  if (waits_for_prefix(job, match)) return -1;
  if (tree_.num_prefixes() != kept) match = find(job);
  return std::ssize(job.prompt) - match.length;
}

bool Scheduler::waits_for_prefix(const Job& job, const PrefixTree::Match& match) {
  if (!may_reuse(job)) return false;
  const auto own = std::span(job.prompt).first(job.prompt.size() - 1);
  for (auto& answer : running_) {
    const Job& other = answer->job();
    if (!answer->runs() || answer->finished() || !other.use_cache || other.adapter != job.adapter ||
        other.cache_scope != job.cache_scope || !answer->is_in_prompt()) {
      continue;
    }
    const int64_t common = std::ranges::mismatch(own, other.prompt).in1 - own.begin();
    if (common - match.length < kWorthWaiting) continue;
    if (answer->length() < common) {
      answer->add_cut(common);
      return true;
    }
    if (has_states_) continue;  // the state of just there is gone
    PrefixTree::drop(keep(*answer, common));
  }
  return false;
}

// What others may begin with: where they said so, at the prompt's end, and at the answer's.
void Scheduler::keep_prefixes(RunningAnswer& answer) {
  const Job& job = answer.job();
  if (!options_.cache_prefixes || !job.use_cache) return;
  const int64_t length = answer.length();
  const bool is_cut = answer.take_cut();
  const bool is_prompt_end = !answer.is_prompt_kept && answer.left_of_prompt() <= 1;
  const bool is_end = answer.finished();
  if (!is_cut && !is_prompt_end && !is_end) return;
  answer.is_prompt_kept = answer.is_prompt_kept || is_prompt_end;
  // A state is kept where it stands. Else whole blocks do, since whoever goes on would have to copy
  // a part of one.
  const bool is_pinned = is_prompt_end && job.pins_prompt;
  const bool is_exact = is_cut || is_end || is_pinned || has_states_;
  const int64_t kept = is_exact ? length : length / block_size_ * block_size_;
  if (kept == 0) return;
  PrefixTree::Node* const node = keep(answer, kept);
  if (node == nullptr) return;
  if (is_pinned) {
    PrefixTree::hold(node);
    pinned_.push_back(node);
  }
  answer.hold(node);
}

// Returns the node, held; null where it could not be made, which nobody needs.
PrefixTree::Node* Scheduler::keep(const RunningAnswer& answer, int64_t length) {
  const Job& job = answer.job();
  try {
    return tree_.insert({job.adapter, job.cache_scope}, answer.sequence(), length, clock_(),
                        tap_.words(answer.sequence()));
  } catch (...) {
    log_message(LogLevel::kWarning, std::string("a prefix is not kept: ") + host_error().what());
    return nullptr;
  }
}

}  // namespace vitrine::serve

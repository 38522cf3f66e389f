// SPDX-License-Identifier: Apache-2.0
// A federation keeps beginnings of sequences that outlive them, and says what a step would take.
#include <algorithm>
#include <string>

#include "engine/federate/federation_impl.h"
#include "engine/run/audit_layout.h"

namespace vitrine {

const Federation::Impl::Prefix& Federation::Impl::find_prefix(PrefixId prefix) const {
  const auto found = prefixes.find(prefix);
  if (found != prefixes.end()) return found->second;
  throw Error(ErrorKind::kInvalidArgument, "prefix " + std::to_string(prefix) +
                                               " is not there; expected one that retain() gave and "
                                               "that was not released");
}

SequenceId Federation::Impl::member_of(size_t engine, SequenceId part) const {
  for (const auto& [name, member] : sequences) {
    for (size_t source = 0; source < sources.size() && part != 0; ++source) {
      if (sources[source].engine == engine && member.sequences[source] == part) return name;
    }
  }
  return 0;
}

void Federation::keep(SequenceId sequence, int64_t count) {
  Impl& impl = *impl_;
  const engine::Occupied occupied(impl.occupant);
  Impl::Member& member = impl.find(sequence);
  const int64_t before = member.length, added = before - member.step_begin;
  if (count < 0 || count > added) {
    throw Error(ErrorKind::kInvalidArgument,
                "sequence " + std::to_string(sequence) + " cannot keep " + std::to_string(count) +
                    " positions of its last step; expected 0 to " + std::to_string(added));
  }
  for (size_t source = 0; source < impl.sources.size(); ++source) {
    impl.engine_of(source).keep(member.sequences[source], count);
  }
  member.length = member.step_begin + count;
  member.history.resize(static_cast<size_t>(member.length));
  if (member.length == before) return;
  engine::tell_sink(impl.sink,
                    AuditEvent{AuditEvent::Kind::kTruncated, sequence, 0, member.length, before});
}

PrefixId Federation::retain(SequenceId sequence, int64_t length) {
  Impl& impl = *impl_;
  const engine::Occupied occupied(impl.occupant);
  const Impl::Member& member = impl.find(sequence);
  if (length < 0 || length > member.length) {
    throw Error(ErrorKind::kInvalidArgument, "sequence " + std::to_string(sequence) +
                                                 " has no prefix of " + std::to_string(length) +
                                                 " positions; expected 0 to " +
                                                 std::to_string(member.length));
  }
  Impl::Prefix prefix;
  prefix.history.assign(member.history.begin(), member.history.begin() + length);
  prefix.parts.reserve(impl.sources.size());
  for (size_t source = 0; source < impl.sources.size(); ++source) {
    prefix.parts.push_back(impl.engine_of(source).retain(member.sequences[source], length));
  }
  const PrefixId name = impl.next_sequence++;
  impl.prefixes.emplace(name, std::move(prefix));
  engine::tell_fork_of_part(impl.sink, name, sequence, member.length, length);
  return name;
}

SequenceId Federation::attach(PrefixId prefix, int64_t length) {
  Impl& impl = *impl_;
  const engine::Occupied occupied(impl.occupant);
  const Impl::Prefix& from = impl.find_prefix(prefix);
  const auto whole = std::ssize(from.history);
  if (length < 0 || length > whole) {
    throw Error(ErrorKind::kInvalidArgument,
                "prefix " + std::to_string(prefix) + " cannot begin a sequence with " +
                    std::to_string(length) + " positions; expected 0 to " + std::to_string(whole));
  }
  Impl::Member member;
  member.history.reserve(static_cast<size_t>(impl.options.max_context));
  member.history.assign(from.history.begin(), from.history.begin() + length);
  member.length = member.step_begin = length;
  member.sequences.reserve(impl.sources.size());
  try {
    for (size_t source = 0; source < impl.sources.size(); ++source) {
      member.sequences.push_back(impl.engine_of(source).attach(from.parts[source], length));
    }
  } catch (...) {  // one engine has as many as may live
    impl.release_all(member);
    throw;
  }
  const SequenceId sequence = impl.next_sequence++;
  impl.sequences.emplace(sequence, std::move(member));
  engine::tell_fork_of_part(impl.sink, sequence, prefix, whole, length);
  return sequence;
}

KvPrefix Federation::prefix(PrefixId prefix) const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  const Impl::Prefix& found = impl_->find_prefix(prefix);
  KvPrefix all{found.history};
  for (size_t source = 0; source < impl_->sources.size(); ++source) {
    all.blocks += impl_->engine_of(source).prefix(found.parts[source]).blocks;
  }
  return all;
}

int64_t Federation::resumed_length(PrefixId prefix, int64_t length) const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  const Impl::Prefix& found = impl_->find_prefix(prefix);
  int64_t least = length;
  for (size_t source = 0; source < impl_->sources.size(); ++source) {
    least = std::min(least, impl_->engine_of(source).resumed_length(found.parts[source], length));
  }
  return least;
}

void Federation::release_prefix(PrefixId prefix) {
  Impl& impl = *impl_;
  const engine::Occupied occupied(impl.occupant, engine::Occupied::kWaits);
  const Impl::Prefix& found = impl.find_prefix(prefix);
  const auto length = std::ssize(found.history);
  for (size_t source = 0; source < impl.sources.size(); ++source) {
    impl.engine_of(source).release_prefix(found.parts[source]);
  }
  impl.prefixes.erase(prefix);
  engine::tell_sink(impl.sink, AuditEvent{AuditEvent::Kind::kReleased, prefix, 0, length, 0});
}

void Federation::preempt(SequenceId sequence) {
  Impl& impl = *impl_;
  const engine::Occupied occupied(impl.occupant);
  const Impl::Member& member = impl.find(sequence);
  for (size_t source = 0; source < impl.sources.size(); ++source) {
    impl.engine_of(source).preempt(member.sequences[source]);
  }
}

std::pair<int64_t, int64_t> Federation::kv_blocks() const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  std::pair<int64_t, int64_t> all;
  for (const auto& engine : impl_->engines) {
    const auto [free, total] = engine->kv_blocks();
    all.first += free;
    all.second += total;
  }
  return all;
}

StepFit Federation::fits(std::span<const StepInput> inputs) const {
  Impl& impl = *impl_;
  const engine::Occupied occupied(impl.occupant, engine::Occupied::kReads);
  std::vector<std::vector<StepInput>> parts(impl.engines.size());
  StepFit fit;
  fit.max_tokens = impl.options.max_step_tokens;
  fit.max_rows = impl.options.max_logit_rows;
  for (const StepInput& input : inputs) {
    const Impl::Member& member = impl.find(input.sequence);
    fit.tokens += static_cast<int64_t>(input.tokens.size());
    fit.rows += row_count(input);
    const int64_t end = member.length + static_cast<int64_t>(input.tokens.size());
    if (end > impl.options.max_context && fit.full_sequence == 0)
      fit.full_sequence = input.sequence;
    for (size_t source = 0; source < impl.sources.size(); ++source) {
      parts[impl.sources[source].engine].push_back(impl.part_of(input, member, source));
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const StepFit of_engine = impl.engines[i]->fits(parts[i]);
    fit.rerun_tokens += of_engine.rerun_tokens;
    const int64_t left = of_engine.free_blocks - of_engine.blocks;
    if (i > 0 && left >= fit.free_blocks - fit.blocks) continue;
    fit.blocks = of_engine.blocks;
    fit.free_blocks = of_engine.free_blocks;
  }
  return fit;
}

StepperTraits Federation::traits() const {
  StepperTraits traits;
  traits.gives_logprobs = true;
  traits.num_specialists = static_cast<int>(impl_->spec.specialists.size());
  for (const auto& engine : impl_->engines) {
    traits.keeps_states = traits.keeps_states || engine->traits().keeps_states;
  }
  traits.samples_on_device = impl_->device_joint && impl_->device_joint->max_sampled > 0;
  return traits;
}

ThreadLender* Federation::thread_lender() {
  return impl_->lender->has_threads() ? &*impl_->lender : nullptr;
}

}  // namespace vitrine

// SPDX-License-Identifier: Apache-2.0
#include "serve/served_model.h"

#include <algorithm>
#include <utility>

#include "serve/adapter_name.h"

namespace vitrine::serve {

ServedModel::ServedModel(NamedModel named, const ServerOptions& options, Scheduler::Clock clock)
    : name(std::move(named.name)),
      model(std::move(named.model)),
      scheduler(model, options, std::move(clock)),
      preparer(model, scheduler.options()) {
  for (const std::string& folder : model.options().adapters) {
    adapters.push_back(adapter_name(folder));
  }
  if (options.block_listener != nullptr) scheduler.tell_blocks_to(*options.block_listener, name);
}

bool ServedModel::answers(std::string_view asked) const {
  return asked == name || std::ranges::find(adapters, asked) != adapters.end();
}

ServerTelemetry ServedModel::telemetry() const {
  ServerTelemetry all = requests;
  add_counts(all, steps);
  return all;
}

void add_counts(ServerTelemetry& all, const ServerTelemetry& one) {
  all.submitted += one.submitted;
  all.finished += one.finished;
  all.failed += one.failed;
  all.cancelled += one.cancelled;
  all.refused += one.refused;
  all.waiting += one.waiting;
  all.running += one.running;
  all.paused += one.paused;
  all.first_token_seconds += one.first_token_seconds;
  all.gap_seconds += one.gap_seconds;
  all.queue_seconds += one.queue_seconds;
  all.steps += one.steps;
  all.prompt_tokens += one.prompt_tokens;
  all.cached_tokens += one.cached_tokens;
  all.computed_prompt_tokens += one.computed_prompt_tokens;
  all.new_tokens += one.new_tokens;
  all.preemptions += one.preemptions;
  all.paused_readers += one.paused_readers;
  all.evicted_prefixes += one.evicted_prefixes;
  all.evicted_tokens += one.evicted_tokens;
  all.evicted_age_seconds += one.evicted_age_seconds;
  all.kept_prefixes += one.kept_prefixes;
  all.record_bytes += one.record_bytes;
  all.store_written += one.store_written;
  all.store_read += one.store_read;
  all.store_read_tokens += one.store_read_tokens;
  all.store_refused += one.store_refused;
  all.store_removed += one.store_removed;
  all.store_bytes += one.store_bytes;
  all.free_blocks += one.free_blocks;
  all.num_blocks += one.num_blocks;
  all.prompt_breaks += one.prompt_breaks;
  all.broken_tokens += one.broken_tokens;
  all.constraint += one.constraint;
  all.speculation += one.speculation;
  all.scheduler_seconds += one.scheduler_seconds;
  all.engine_seconds += one.engine_seconds;
  all.step_seconds += one.step_seconds;
}

}  // namespace vitrine::serve

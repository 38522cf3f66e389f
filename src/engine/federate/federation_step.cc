// SPDX-License-Identifier: Apache-2.0
// One step of a federation: all specialists, their joint, one record.
#include <algorithm>
#include <array>
#include <cstring>

#include "audit/pass_record.h"
#include "engine/federate/federation_impl.h"
#include "engine/run/audit_layout.h"
#include "engine/run/draft_trees.h"
#include "engine/run/step_checks.h"

namespace vitrine {

void Federation::Impl::prepare() {
  blamed = 0;
  for (std::vector<StepInput>& of : inputs) of.clear();
  rows.clear();
  size_t num_rows = 0, num_routes = 0;
  for (const StepInput& input : step_inputs) num_routes += input.routes.size();
  routes.clear();
  routes.reserve(num_routes);  // the engines' inputs point into it
  for (const StepInput& input : step_inputs) {
    const Member& member = find(input.sequence);
    if (engine::DraftTree::is_tree(input)) {
      throw Error(ErrorKind::kUnsupported,
                  "a federation takes drafts in a chain; expected draft_parents to be empty");
    }
    engine::check_forced_routes(layout, input);
    engine::check_choices(input, static_cast<size_t>(summary.vocab_size));
    num_rows += engine::StepRows::count(input);
    if (num_rows <= static_cast<size_t>(options.max_logit_rows)) rows.add(input, member.length);
    int32_t first_layer = 0;
    for (size_t source = 0; source < sources.size(); ++source) {
      StepInput own = part_of(input, member, source);
      const auto layers = static_cast<int32_t>(engine_of(source).audit_layout().layers.size());
      if (!input.routes.empty()) own.routes = own_routes(input.routes, first_layer, layers);
      first_layer += layers;
      inputs[sources[source].engine].push_back(own);
    }
  }
  if (num_rows > static_cast<size_t>(options.max_logit_rows)) {
    throw Error(ErrorKind::kInvalidArgument, "a step with " + std::to_string(num_rows) +
                                                 " rows of logits is over max_logit_rows, " +
                                                 std::to_string(options.max_logit_rows) +
                                                 "; split it");
  }
}

StepInput Federation::Impl::part_of(const StepInput& input, const Member& member,
                                    size_t source) const {
  StepInput own;
  own.sequence = member.sequences[source];
  own.tokens = input.tokens;
  own.rows = input.rows;
  own.next_token = input.next_token;
  own.num_drafts = input.num_drafts;
  own.cancelled = input.cancelled;
  // Several engines' next steps hang on a joint that none of them makes.
  own.goes_on = input.goes_on && joint_model == nullptr;
  return own;
}

// Those of a source's layers, under the numbers that its engine knows.
std::span<const ForcedRoute> Federation::Impl::own_routes(std::span<const ForcedRoute> all,
                                                          int32_t first_layer, int32_t layers) {
  const size_t first = routes.size();
  for (ForcedRoute route : all) {
    if (route.layer < first_layer || route.layer >= first_layer + layers) continue;
    route.layer -= first_layer;
    routes.push_back(route);
  }
  return std::span(routes).subspan(first);
}

void Federation::Impl::run() {
  watch.begin();
  watch.add(options.cancelled);
  for (const StepInput& input : step_inputs) watch.add(input.cancelled);
  if (records()) clock.begin();
  try {
    for (const StepInput& input : step_inputs) {  // before the pass: a sampler in it sees them
      std::vector<int32_t>& history = find(input.sequence).history;
      history.insert(history.end(), input.tokens.begin(), input.tokens.end());
    }
    row_sampler->begin(rows.size());
    is_joint_on_device = run_on_device();
    if (!is_joint_on_device) {
      const bool stops = attributes();
      for (size_t i = 0; i < engines.size(); ++i) {
        engine_outputs[i] = in_engine(i, [&] {
          return stops ? runner(i).step_to_rows(inputs[i]) : runner(i).step(inputs[i]);
        });
      }
      collect();
      if (stops) tell_choices();
    }
    if (records()) record();
  } catch (...) {
    undo();
    throw;
  }
  for (const StepInput& input : step_inputs) {
    Member& member = find(input.sequence);
    member.step_begin = member.length;
    member.length = static_cast<int64_t>(member.history.size());
  }
  for (size_t row = 0; row < outputs.size(); ++row) {  // now that the record has filled them in
    if (outputs[row].token >= 0 && rows[row].is_chosen() &&
        engine::RowSampler::is_needed(input_of(row))) {
      outputs[row].constraint = row_sampler->constraint(row);
    }
  }
  ++passes;
}

// The rest of every pass, now that each row's token is known.
void Federation::Impl::tell_choices() {
  const size_t count = spec.specialists.size();
  for (size_t i = 0; i < engines.size(); ++i) {
    choices[i].chosen.assign(engine_outputs[i].size(), -1);
    choices[i].runners_up.assign(engine_outputs[i].size(), -1);
  }
  for (size_t row = 0; row < outputs.size(); ++row) {
    for (size_t source = 0; source < count; ++source) {
      Choices& of = choices[sources[source].engine];
      const size_t engine_row = part_rows[row * count + source];
      of.chosen[engine_row] = outputs[row].token;
      if (outputs[row].token < 0) continue;
      of.runners_up[engine_row] = engine::runner_up(stats[row], outputs[row].token);
    }
  }
  for (size_t i = 0; i < engines.size(); ++i) {
    in_engine(i, [&] { runner(i).step_from_rows(choices[i].chosen, choices[i].runners_up); });
  }
}

// No specialist is further than the others.
void Federation::Impl::undo() {
  for (const StepInput& input : step_inputs) {
    Member& member = find(input.sequence);
    member.history.resize(static_cast<size_t>(member.length));
    for (size_t source = 0; source < sources.size(); ++source) {
      const int64_t length = member.length;
      if (engine_of(source).length(member.sequences[source]) > length) {
        engine_of(source).truncate(member.sequences[source], length);
      }
    }
  }
}

// Brings the engines' rows into the order of the federation's and makes each one's joint, until
// an input's row chooses another token than its draft.
void Federation::Impl::collect() {
  outputs.clear();
  next_output.assign(engines.size(), 0);
  const size_t count = spec.specialists.size();
  for (size_t input = 0; input < step_inputs.size(); ++input) {
    const size_t first = rows.first_of(input), end = rows.first_of(input + 1);
    for (size_t source = 0; source < sources.size(); ++source) {
      const size_t engine = sources[source].engine;
      for (size_t row = first; row < end; ++row) {
        const size_t engine_row = next_output[engine]++;
        const StepOutput& output = engine_outputs[engine][engine_row];
        if (source < count) {
          parts[row * count + source].logits = output.scores;
          part_rows[row * count + source] = engine_row;
        }
        if (source == base) hidden[row] = output.hidden_state;
      }
    }
  }
  engine::AcceptedRows accepted;
  for (size_t row = 0; row < rows.size(); ++row) {
    watch.check();
    const StepInput& input = input_of(row);
    if (accepted.has(rows[row], input)) {
      engine::blame(blamed, input.sequence, [&] { combine_row(row); });
      accepted.choose(rows[row], input, outputs.back().token);
    } else {
      outputs.push_back(output_of(row));
    }
  }
}

// The output of a row, but for its token and what the joint gives.
StepOutput Federation::Impl::output_of(size_t row) const {
  StepOutput output;
  output.sequence = input_of(row).sequence;
  output.position = rows[row].position;
  return output;
}

// Each specialist's logits of the two tokens and the terms that its engine made.
void Federation::Impl::record_terms(size_t row, std::byte* words) {
  const size_t count = spec.specialists.size();
  const auto token = static_cast<size_t>(outputs[row].token);
  const auto other =
      static_cast<size_t>(std::max(0, engine::runner_up(stats[row], outputs[row].token)));
  std::byte* to = words + static_cast<size_t>(layout.attribution) * sizeof(float);
  for (size_t source = 0; source < count; ++source) {
    std::array<float, 2> logits;
    if (is_joint_on_device) {
      logits = device_logits(row, source);
    } else {
      const std::span<const float> all = parts[row * count + source].logits;
      logits = {all[token], all[other]};
    }
    for (const float logit : logits) {
      std::memcpy(to, &logit, sizeof(logit));
      to += sizeof(logit);
    }
    const RecordTap& tap = taps[sources[source].engine];
    const size_t bytes = 2 * tap.layout().terms.size() * sizeof(float);
    std::memcpy(to,
                tap.row_words(part_rows[row * count + source]) +
                    static_cast<size_t>(tap.layout().attribution) * sizeof(float),
                bytes);
    to += bytes;
  }
}

// One record of the pass: each source's words behind one another.
void Federation::Impl::record() {
  const std::span<const AuditToken> tokens = rows.audit_tokens();
  const size_t num_specialists = spec.specialists.size();
  const AuditPassHeader header = audit::record_header(layout, passes, tokens.size(), rows.size());
  const uint64_t step_ns = clock.nanoseconds();  // waiting for a slow sink is no work
  std::byte* const out = audit::begin_record(*sink, header);
  std::byte* audit_tokens = out + sizeof(header);
  std::byte* chosen = audit_tokens + tokens.size_bytes();
  std::byte* row_words = chosen + rows.size() * sizeof(int32_t);
  std::byte* token_words =
      row_words + rows.size() * static_cast<size_t>(layout.row_words) * sizeof(int32_t);
  std::memcpy(audit_tokens, tokens.data(), tokens.size_bytes());
  next_output.assign(engines.size(), 0);
  for (const StepInput& input : step_inputs) {
    const size_t count = input.tokens.size();
    size_t word = 0;
    for (const FederationSource& source : sources) {
      const size_t width =
          static_cast<size_t>(taps[source.engine].layout().token_words) * sizeof(int32_t);
      for (size_t i = 0; i < count; ++i) {
        std::memcpy(
            token_words + i * static_cast<size_t>(layout.token_words) * sizeof(int32_t) + word,
            taps[source.engine].token_words(next_output[source.engine]++), width);
      }
      word += width;
    }
    token_words += count * static_cast<size_t>(layout.token_words) * sizeof(int32_t);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const int32_t id = outputs[i].token;
    std::memcpy(chosen + i * sizeof(int32_t), &id, sizeof(id));
    if (id < 0) {  // nobody looked at the row: its token has none
      rows.drop_row(i, audit_tokens);
      continue;
    }
    engine::FederationRow of;
    of.chosen = id;
    of.logprob = accounts[i].logprob;
    of.stats = &stats[i];
    of.score = accounts[i].score;
    of.residual = accounts[i].residual;
    of.shares = std::span(shares).subspan(i * num_specialists, num_specialists);
    std::byte* words = row_words + i * static_cast<size_t>(layout.row_words) * sizeof(int32_t);
    engine::write_federation_row(layout, of, words);
    if (!layout.terms.empty()) record_terms(i, words);
    row_sampler->record(layout, rows[i].is_chosen() ? &input_of(i) : nullptr, i, accounts[i].joint,
                        words);
    if (rows[i].kind == engine::StepRow::Kind::kForced) {
      row_sampler->record_forced(layout, input_of(i), id, words);
    }
  }
  engine::commit_record(*sink, out, step_ns, blamed);
}

}  // namespace vitrine

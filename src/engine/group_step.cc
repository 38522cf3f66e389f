// SPDX-License-Identifier: Apache-2.0
// One step of a federation: all specialists, their joint, one record.
#include <algorithm>
#include <array>
#include <cstring>

#include "engine/audit_layout.h"
#include "engine/forced_routes.h"
#include "engine/group_impl.h"

namespace vitrine {

void Federation::Impl::prepare(std::span<const StepInput> step_inputs) {
  for (std::vector<StepInput>& of : inputs) of.clear();
  size_t rows = 0, num_routes = 0;
  for (const StepInput& input : step_inputs) num_routes += input.routes.size();
  routes.clear();
  routes.reserve(num_routes);  // the engines' inputs point into it
  for (const StepInput& input : step_inputs) {
    const Member& member = find(input.sequence);
    engine::check_forced_routes(layout, input);
    row_sampler->check(input);
    int32_t first_layer = 0;
    for (size_t source = 0; source < sources.size(); ++source) {
      StepInput own;
      own.sequence = member.sequences[source];
      own.tokens = input.tokens;
      own.rows = input.rows;
      own.next_token = input.next_token;
      // Several engines' next steps hang on a joint that none of them makes.
      own.goes_on = input.goes_on && joint_model == nullptr;
      const auto layers = static_cast<int32_t>(engine_of(source).audit_layout().layers.size());
      if (!input.routes.empty()) own.routes = own_routes(input.routes, first_layer, layers);
      first_layer += layers;
      inputs[sources[source].engine].push_back(own);
    }
    rows += rows_of(input);
  }
  if (rows > static_cast<size_t>(options.max_logit_rows)) {
    throw Error(ErrorKind::kInvalidArgument,
                "a step with " + std::to_string(rows) + " rows of logits is over max_logit_rows, " +
                    std::to_string(options.max_logit_rows) + "; split it");
  }
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

void Federation::Impl::run(std::span<const StepInput> step_inputs) {
  if (records()) clock.begin();
  try {
    for (const StepInput& input : step_inputs) {  // before the pass: a sampler in it sees them
      std::vector<int32_t>& history = find(input.sequence).history;
      history.insert(history.end(), input.tokens.begin(), input.tokens.end());
    }
    is_joint_on_device = run_on_device(step_inputs);
    if (!is_joint_on_device) {
      const bool stops = attributes();
      for (size_t i = 0; i < engines.size(); ++i) {
        engine_outputs[i] = stops ? engines[i]->begin_step(inputs[i]) : engines[i]->step(inputs[i]);
      }
      collect(step_inputs);
      if (stops) tell_choices();
    }
  } catch (...) {
    undo(step_inputs);
    throw;
  }
  for (const StepInput& input : step_inputs) {
    Member& member = find(input.sequence);
    member.length = static_cast<int64_t>(member.history.size());
  }
  if (records()) record(step_inputs);
  for (size_t row = 0; row < outputs.size(); ++row) {  // now that the record has filled them in
    const StepInput* input = accounts[row].input;
    if (input != nullptr && engine::RowSampler::is_needed(*input)) {
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
      of.runners_up[engine_row] = engine::runner_up(stats[row], outputs[row].token);
    }
  }
  for (size_t i = 0; i < engines.size(); ++i) {
    engines[i]->finish_step(choices[i].chosen, choices[i].runners_up);
  }
}

// No specialist is further than the others.
void Federation::Impl::undo(std::span<const StepInput> step_inputs) {
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

// Brings the engines' rows into the order of the federation's and makes each one's joint.
void Federation::Impl::collect(std::span<const StepInput> step_inputs) {
  outputs.clear();
  next_output.assign(engines.size(), 0);
  size_t row = 0;
  const size_t count = spec.specialists.size();
  for (const StepInput& input : step_inputs) {
    const int64_t past = find(input.sequence).length;
    const size_t tokens = input.tokens.size(), rows = rows_of(input);
    for (size_t source = 0; source < sources.size(); ++source) {
      const size_t engine = sources[source].engine;
      for (size_t i = 0; i < rows; ++i) {
        const size_t engine_row = next_output[engine]++;
        const StepOutput& output = engine_outputs[engine][engine_row];
        if (source < count) {
          parts[(row + i) * count + source].logits = output.logits;
          part_rows[(row + i) * count + source] = engine_row;
        }
        if (source == base) hidden[row + i] = output.hidden_state;
      }
    }
    for (size_t i = 0; i < rows; ++i, ++row) {
      const size_t token = tokens - rows + i;
      const bool is_last = token + 1 == tokens;
      combine_row(row, input, past + static_cast<int64_t>(token),
                  is_last ? input.next_token : input.tokens[token + 1]);
      accounts[row].forced = engine::RowSampler::is_forced(input, token) ? &input : nullptr;
    }
  }
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
void Federation::Impl::record(std::span<const StepInput> step_inputs) {
  size_t tokens = 0;
  for (const StepInput& input : step_inputs) tokens += input.tokens.size();
  const size_t rows = outputs.size();
  const size_t num_specialists = spec.specialists.size();
  const AuditPassHeader header = engine::record_header(layout, passes, tokens, rows);
  const uint64_t step_ns = clock.nanoseconds();  // waiting for a slow sink is no work
  std::byte* out = engine::begin_record(*sink, header);
  std::byte* audit_tokens = out + sizeof(header);
  std::byte* chosen = audit_tokens + tokens * sizeof(AuditToken);
  std::byte* row_words = chosen + rows * sizeof(int32_t);
  std::byte* token_words =
      row_words + rows * static_cast<size_t>(layout.row_words) * sizeof(int32_t);
  next_output.assign(engines.size(), 0);
  size_t row = 0;
  for (const StepInput& input : step_inputs) {
    const size_t count = input.tokens.size();
    const auto past = static_cast<int64_t>(find(input.sequence).history.size() - count);
    size_t word = 0;
    for (const GroupSource& source : sources) {
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
    for (size_t i = 0; i < count; ++i) {
      AuditToken token{input.sequence, static_cast<int32_t>(past + static_cast<int64_t>(i)),
                       input.tokens[i], -1, 0};
      const bool is_last = i + 1 == count;
      if (input.rows == StepInput::Rows::kAll ||
          (is_last && input.rows == StepInput::Rows::kLast)) {
        token.row = static_cast<int32_t>(row++);
        const bool chooses = is_last && input.next_token < 0;
        token.generated = chooses || engine::RowSampler::is_forced(input, i) ? 1 : 0;
      }
      std::memcpy(audit_tokens, &token, sizeof(token));
      audit_tokens += sizeof(token);
    }
  }
  for (size_t i = 0; i < rows; ++i) {
    const int32_t id = outputs[i].token;
    std::memcpy(chosen + i * sizeof(int32_t), &id, sizeof(id));
    engine::GroupRow of;
    of.chosen = id;
    of.logprob = accounts[i].logprob;
    of.stats = &stats[i];
    of.score = accounts[i].score;
    of.residual = accounts[i].residual;
    of.shares = std::span(shares).subspan(i * num_specialists, num_specialists);
    std::byte* words = row_words + i * static_cast<size_t>(layout.row_words) * sizeof(int32_t);
    engine::write_group_row(layout, of, words);
    if (!layout.terms.empty()) record_terms(i, words);
    row_sampler->record(layout, accounts[i].input, i, accounts[i].joint, words);
    if (accounts[i].forced != nullptr) {
      row_sampler->record_forced(layout, *accounts[i].forced, id, words);
    }
  }
  engine::commit_record(*sink, out, step_ns);
}

}  // namespace vitrine

// SPDX-License-Identifier: Apache-2.0
#include "input_tokens.h"

#include <utility>

namespace vitrine {

bool InputTokens::is_first_reading(const TokenRecord& record) {
  State& state = states_[record.sequence];
  const bool is_generated = state.chose_next && record.position == state.next_position;
  if (record.position != state.next_position) go_to(state, record.position);
  state.of_forks = nullptr;
  state.next_position = record.position + 1;
  state.chose_next = record.has_prediction && record.prediction.generated;
  if (is_generated) {
    state.known = nullptr;
    return false;
  }
  if (state.run_begin + static_cast<int64_t>(state.run.size()) != record.position) {
    state.run.clear();
    state.run_begin = record.position;
  }
  state.run.push_back(record.token);
  return is_new(state, record.token);
}

/// Back to a position, or on to one behind others that are not in the log.
void InputTokens::go_to(State& state, int64_t position) {
  const auto end = state.run_begin + static_cast<int64_t>(state.run.size());
  state.known = nullptr;
  if (position >= state.run_begin && position < end) {
    const auto behind = state.run.begin() + (position - state.run_begin);
    state.known = std::make_shared<Tokens>(behind, state.run.end());
    state.num_met = 0;
    state.is_shared = false;
    state.run.erase(behind, state.run.end());
  }
}

bool InputTokens::is_new(State& state, int32_t token) {
  if (state.known == nullptr) return true;
  Tokens& known = *state.known;
  if (state.num_met < known.size()) {
    is_unknown_ = is_unknown_ || token < 0 || known[state.num_met] < 0;
    if (known[state.num_met] == token) {
      ++state.num_met;
      return false;
    }
  } else if (state.is_shared) {
    known.push_back(token);
    ++state.num_met;
    return true;
  }
  state.known = nullptr;
  return true;
}

void InputTokens::on_event(const VtrEvent& event) {
  if (event.kind == VtrEvent::Kind::kReleased) {
    states_.erase(event.sequence);
  } else if (event.kind == VtrEvent::Kind::kForked) {
    State fork;
    fork.next_position = fork.run_begin = event.count;
    State& source = states_[event.source];
    if (source.next_position == event.count) {
      fork.chose_next = source.chose_next;
      if (source.of_forks == nullptr) source.of_forks = std::make_shared<Tokens>();
      fork.known = source.of_forks;
      fork.is_shared = true;
    }
    states_[event.sequence] = std::move(fork);
  }
}

}  // namespace vitrine

// SPDX-License-Identifier: Apache-2.0
// Which records of a log read a token that was put in, and not one that was generated before.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "vitrine/audit_log.h"

namespace vitrine {

/// A token of the prompt counts once, however many candidates (forks) or attempts (truncations)
/// read it at the same place behind the same tokens. Takes a log's records and events in order; its
/// memory is a word for each token that live sequences read last.
class InputTokens {
 public:
  /// True where the record's token was put in, and no record counted it before.
  bool is_first_reading(const TokenRecord& record);
  void on_event(const VtrEvent& event);
  /// True once it could not be told, because tokens were left out.
  bool is_unknown() const { return is_unknown_; }

 private:
  using Tokens = std::vector<int32_t>;
  struct State {
    int64_t next_position = 0;
    bool chose_next = false;
    // The last tokens that were put in one behind the other.
    int64_t run_begin = 0;
    Tokens run;
    // What was read from here before: behind a truncation, or by another fork of the same source,
    // for which it is continued.
    std::shared_ptr<Tokens> known;
    size_t num_met = 0;  // of `known`
    bool is_shared = false;
    std::shared_ptr<Tokens> of_forks;  // what forks at next_position read behind it
  };
  void go_to(State& state, int64_t position);
  bool is_new(State& state, int32_t token);

  std::map<uint64_t, State> states_;
  bool is_unknown_ = false;
};

}  // namespace vitrine

// SPDX-License-Identifier: Apache-2.0
#include "failure_text.h"

#include <fmt/format.h>

#include <sstream>

#include "audit_run.h"

namespace cli {

namespace {

using Failure = vitrine::ConstraintFailure;
using nlohmann::json;

constexpr size_t kMaxNotes = 4;
constexpr auto kReplace = json::error_handler_t::replace;

std::string reason_text(const Failure& failure, const std::function<std::string(int32_t)>& quoted) {
  switch (failure.kind) {
    case Failure::Kind::kDeadlock:
      if (failure.allowed == 0) return "no token of the model leads on";
      if (failure.in_time == 0) {
        return fmt::format("of {} tokens that lead on, none is known to leave room to finish",
                           failure.allowed);
      }
      return fmt::format("of {} tokens that lead on in time, all are banned", failure.in_time);
    case Failure::Kind::kRefused:
      return fmt::format("without a mask came {}, which the constraint refuses",
                         quoted(failure.token));
    case Failure::Kind::kUnfinished: return "the answer ended before it was whole";
    case Failure::Kind::kRejected: return "the validator refused the whole answer";
    case Failure::Kind::kError: return plain(failure.message);
  }
  return "";
}

}  // namespace

std::string state_text(const vitrine::ConstraintState& state, const std::string& indent) {
  std::string text;
  for (const std::string& reading : state.readings) text += indent + plain(reading) + "\n";
  const auto shown = static_cast<int64_t>(state.readings.size());
  if (state.num_readings > shown) {
    text += fmt::format("{}… {} more readings\n", indent, state.num_readings - shown);
  }
  if (!state.next_bytes.empty()) {
    text += fmt::format("{}allowed there: {}\n", indent, plain(state.next_bytes));
  }
  if (!state.completion.empty()) {
    text += fmt::format("{}would finish it: {}\n", indent, plain(state.completion));
  }
  return text;
}

std::string failure_text(const Failure& failure,
                         const std::function<std::string(int32_t)>& quoted) {
  return fmt::format(
             "{} in sequence {} at position {}, attempt {}, behind {} bytes of the answer: {}\n",
             vitrine::constraint_failure_name(failure.kind), failure.sequence, failure.position,
             failure.attempt, failure.state.num_bytes, reason_text(failure, quoted)) +
         state_text(failure.state, "  ");
}

nlohmann::ordered_json failure_json(const Failure& failure) {
  nlohmann::ordered_json out = {{"kind", vitrine::constraint_failure_name(failure.kind)},
                                {"attempt", failure.attempt},
                                {"sequence", failure.sequence},
                                {"position", failure.position}};
  if (failure.kind == Failure::Kind::kRefused) out["token"] = failure.token;
  if (failure.kind == Failure::Kind::kDeadlock) {
    out["allowed"] = failure.allowed;
    out["in_time"] = failure.in_time;
  }
  if (!failure.message.empty()) out["message"] = failure.message;
  out["bytes"] = failure.state.num_bytes;
  out["num_readings"] = failure.state.num_readings;
  out["readings"] = failure.state.readings;
  out["next_bytes"] = failure.state.next_bytes;
  out["completion"] = failure.state.completion;
  return out;
}

void write_failures(const std::vector<Failure>& failures, const vitrine::Tokenizer& tokenizer) {
  const auto quoted = [&tokenizer](int32_t id) {
    return plain(json(tokenizer.token_bytes(id)).dump(-1, ' ', false, kReplace));
  };
  for (size_t i = 0; i < failures.size() && i < kMaxNotes; ++i) {
    std::istringstream lines(failure_text(failures[i], quoted));
    for (std::string line; std::getline(lines, line);) write_note(line);
  }
  if (failures.size() > kMaxNotes) {
    write_note(fmt::format("… {} more; --json and a log have them", failures.size() - kMaxNotes));
  }
}

}  // namespace cli

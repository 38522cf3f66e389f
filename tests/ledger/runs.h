// SPDX-License-Identifier: Apache-2.0
// Rates and runs for the tests of ledgers.
#pragma once

#include <string>

#include "vitrine/ledger.h"

namespace vitrine::testing {

inline std::string head(const std::string& rest) {
  return R"({"currency":"EUR","payer":"host","server":"us",)" + rest + "}";
}
inline std::string group(const std::string& layers, const std::string& experts,
                         const std::string& more = "") {
  return R"({"group":"g","account":"a","token":5,"experts":[{"layers":)" + layers +
         R"(,"experts":)" + experts + "}]" + more + "}";
}
inline std::string by_gates(const std::string& rates) {
  return head(R"("basis":"gate_weight","royalties":[)" + rates + "]");
}

inline RunAccount a_run(const std::string& id = "00") {
  RunAccount run;
  run.path = "run-" + id + ".vtr";
  run.log_id = id;
  run.started_unix_ns = uint64_t{1'790'000'000} * 1'000'000'000;  // September 2026
  run.tokens_in = 7;
  run.tokens_out = 3;
  run.log_bytes = 1 << 19;
  run.device_us = 1'500'001;
  run.shares[ShareBasis::kGateWeight] = {{{"", 0, 0}, 1'500'000'000}, {{"", 0, 1}, 1'499'999'999}};
  run.unshared[ShareBasis::kGateWeight] = 1;
  return run;
}

}  // namespace vitrine::testing

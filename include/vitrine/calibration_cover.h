// SPDX-License-Identifier: Apache-2.0
// The room `compress`: routing as audit logs count it, windows that make up for what a
// calibration's experts lack, and how far live routing has gone from a calibration's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vitrine/audit_log.h"
#include "vitrine/calibration.h"

namespace vitrine {

/// How audit logs say that experts were used. Nothing of a text is in it.
struct AuditRouting {
  int64_t tokens = 0;                 ///< that the counts are of
  std::vector<LayerRouting> routing;  ///< layers with experts, ascending; without gate masses
  std::vector<std::pair<std::string, std::string>> logs;  ///< file name, SHA-256
};

/// Adds up the routing of sealed `.vtr` logs. A log's counters count where it has any (all levels
/// may, and `counters` has nothing else), else the routes of its records. Each is verified: throws
/// kBadFile for one that is broken, sealed by another key than `key`, has neither counters nor
/// routes, or is of a model with other layers or experts than the first; kInvalidArgument without
/// logs, and what VtrReader throws. Thread-safe.
VITRINE_API AuditRouting read_audit_routing(const std::vector<std::string>& logs,
                                            const std::optional<PublicKey>& key = {},
                                            const std::optional<SealKey>& reader = {});

/// How windows are chosen.
struct CoverOptions {
  int64_t tokens = 65536;     ///< of the windows that are chosen
  int64_t starved_below = 0;  ///< StatisticsOptions::starved_below
  AuditRouting live = {};     ///< without layers: each expert of a layer counts as much as another
  int threads = 0;            ///< 0: all. No choice hangs on it
  bool lenient_weights = false;  ///< EngineOptions::lenient_weights
  /// Called before each window (done, total). May throw.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

/// Chooses windows by greedy cover: all of them go through the model once, then the one that gives
/// starved experts the most tokens for its length is taken, again and again, until there are
/// `tokens`; of equal ones the first. A token counts for an expert up to `starved_below` of them,
/// and by the expert's share of its layer's live routing times their number. Where none gives any,
/// windows follow as they stand. The record says from how much was chosen, how many experts starve
/// and would have with windows as they stand (`starved`, `starved_in_turn`), which share of live
/// routing those have, and the logs. The same windows give the same choice. Throws kInvalidArgument
/// for live routing of another model, and what measure_statistics() throws. Thread-safe.
VITRINE_API WindowChoice cover_windows(const std::string& model,
                                       const std::vector<std::vector<int32_t>>& windows,
                                       const CoverOptions& options);

/// How far a layer's routing is from another's.
struct LayerDrift {
  int layer = 0;          ///< counts from 0
  double divergence = 0;  ///< Jensen-Shannon, in bits: 0 of equal shares, 1 of disjoint ones
  /// What two samples of one distribution with as many tokens would have, about: tokens of a text
  /// depend on each other, so that more is expected.
  double by_chance = 0;
};

/// Compares the shares that experts have of each layer's routing (Lin 1991, "Divergence measures
/// based on the Shannon entropy"). Throws kInvalidArgument where layers or experts differ, and for
/// a layer without tokens. Thread-safe.
VITRINE_API std::vector<LayerDrift> routing_drift(const std::vector<LayerRouting>& calibration,
                                                  const std::vector<LayerRouting>& live);

}  // namespace vitrine

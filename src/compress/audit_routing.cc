// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>

#include "vitrine/calibration_cover.h"
#include "vitrine/checkpoint.h"

namespace vitrine {
namespace {

[[noreturn]] void refuse_log(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::kBadFile, path + ": " + what);
}

/// Counts by layer of one log.
struct LogCounts {
  std::vector<std::vector<int64_t>> by_layer;
  int64_t tokens = 0;
  explicit LogCounts(const std::vector<AuditLayout::Layer>& layers) {
    for (const AuditLayout::Layer& layer : layers) {
      by_layer.emplace_back(static_cast<size_t>(std::max(0, layer.num_experts)));
    }
  }
};

constexpr uint64_t kMostUses = uint64_t{1} << 48;

void add_uses(const std::string& path, const VtrPage& page, LogCounts& counts) {
  if (page.expert_uses.empty()) return;
  const auto add = [&](int64_t& sum, uint64_t more) {
    if (more > kMostUses || static_cast<uint64_t>(sum) > kMostUses) {
      refuse_log(path, "counts " + std::to_string(more) +
                           " tokens of an expert; expected fewer than 2^48 in all");
    }
    sum += static_cast<int64_t>(more);
  };
  add(counts.tokens, page.expert_use_tokens);
  const size_t layers = std::min(counts.by_layer.size(), page.expert_uses.size());
  for (size_t i = 0; i < layers; ++i) {
    const size_t experts = std::min(counts.by_layer[i].size(), page.expert_uses[i].size());
    for (size_t e = 0; e < experts; ++e) {
      add(counts.by_layer[i][e], page.expert_uses[i][e]);
    }
  }
}

void add_routes(const VtrPage& page, LogCounts& counts) {
  for (const TokenRecord& record : page.records) {
    bool has_routes = false;
    for (size_t i = 0; i < std::min(record.layers.size(), counts.by_layer.size()); ++i) {
      for (const RouteRecord& route : record.layers[i].routes) {
        const auto expert = static_cast<size_t>(route.expert);
        if (route.expert < 0 || expert >= counts.by_layer[i].size()) continue;
        ++counts.by_layer[i][expert];
        has_routes = true;
      }
    }
    counts.tokens += has_routes ? 1 : 0;
  }
}

std::vector<LayerRouting> routing_of(const std::vector<AuditLayout::Layer>& layers,
                                     const LogCounts& counts) {
  std::vector<LayerRouting> routing;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].num_experts > 0) {
      routing.push_back({layers[i].layer, counts.by_layer[i], {}});
    }
  }
  return routing;
}

/// Counts as the counters have them, and where there are none, as the records do.
LogCounts count_log(const std::string& path, VtrReader& log) {
  const std::vector<AuditLayout::Layer>& layers = log.header().layers;
  LogCounts uses(layers), routes(layers);
  VtrPage page;
  while (log.next(page)) {
    add_uses(path, page, uses);
    add_routes(page, routes);
  }
  return uses.tokens > 0 ? uses : routes;
}

void add_log(const std::string& path, const LogCounts& counts,
             const std::vector<AuditLayout::Layer>& layers, AuditRouting& sum) {
  std::vector<LayerRouting> routing = routing_of(layers, counts);
  if (sum.routing.empty()) {
    sum.routing = std::move(routing);
    return;
  }
  const auto is_same = [](const LayerRouting& a, const LayerRouting& b) {
    return a.layer == b.layer && a.tokens.size() == b.tokens.size();
  };
  if (!std::ranges::equal(routing, sum.routing, is_same)) {
    refuse_log(path, "is of a model with other layers or experts than " + sum.logs.front().first +
                         "; expected logs of one model");
  }
  for (size_t i = 0; i < routing.size(); ++i) {
    for (size_t e = 0; e < routing[i].tokens.size(); ++e) {
      sum.routing[i].tokens[e] += routing[i].tokens[e];
    }
  }
}

}  // namespace

AuditRouting read_audit_routing(const std::vector<std::string>& logs,
                                const std::optional<PublicKey>& key,
                                const std::optional<SealKey>& reader) {
  if (logs.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "there are no logs; expected .vtr files");
  }
  AuditRouting sum;
  for (const std::string& path : logs) {
    const VtrReport report = verify_vtr(path, key, reader);
    if (report.seal == VtrReport::Seal::kBroken) refuse_log(path, "is broken: " + report.problem);
    VtrReader log(path, reader);
    if (!log.header().federation.specialists.empty()) {
      refuse_log(path, "is of a federation; expected a log of one model");
    }
    const LogCounts counts = count_log(path, log);
    if (counts.tokens == 0) {
      refuse_log(path, "has neither counters of experts nor routes; expected either");
    }
    sum.tokens += counts.tokens;
    add_log(path, counts, log.header().layers, sum);
    sum.logs.emplace_back(std::filesystem::path(path).filename().string(), sha256_of_file(path));
  }
  return sum;
}

}  // namespace vitrine

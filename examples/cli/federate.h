// What the commands around federations share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common.h"
#include "vitrine/audit_log.h"
#include "vitrine/group.h"

namespace cli {

/// The options and the action of `vitrine federate` itself.
void add_federated_generation(CLI::App& federate, Command& command);
/// `vitrine federate fit` and `vitrine federate score`.
void add_federate_fit(CLI::App& federate, Command& command);

/// Names the federation, its members and their hashes in a log's head.
void add_members(const vitrine::FederationSpec& spec, vitrine::LogHeader& header);

/// `vitrine inspect` of a federation file.
int inspect_federation(const std::string& path, const DeviceOptions& device, bool json);

/// A token of a text as a federation predicted it.
struct ScoredToken {
  size_t text = 0;    ///< which of the texts
  size_t window = 0;  ///< which of that text's windows
  const vitrine::StepOutput* output = nullptr;
  std::span<const vitrine::SpecialistShare> shares;
  int32_t token = 0;
};

/// Texts as ids, cut into windows that each begin anew.
struct ScoredTexts {
  std::vector<std::string> names, hashes;  ///< [texts]
  std::vector<std::vector<int32_t>> ids;   ///< [texts]
  size_t num_tokens() const;
};
ScoredTexts read_texts(const std::vector<std::string>& paths, const vitrine::FederationSpec& spec);

/// Options for scoring windows of so many tokens.
vitrine::EngineOptions scoring_options(const DeviceOptions& device, int window);
/// Every token but the first of each window, of one window of each text in `every`. Stops where
/// Ctrl-C was pressed (kCancelled).
void score_texts(vitrine::Federation& federation, const ScoredTexts& texts, int window,
                 const std::function<void(const ScoredToken&)>& on_token, size_t every = 1);

}  // namespace cli

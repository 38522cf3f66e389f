// SPDX-License-Identifier: Apache-2.0
// What the commands around federations share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common.h"
#include "model_hashes.h"
#include "output_path.h"
#include "vitrine/audit_log.h"
#include "vitrine/federation_engine.h"
#include "vitrine/quality.h"

namespace cli {

/// The options and the action of `vitrine federate` itself.
void add_federated_generation(CLI::App& federate, Command& command);
/// `vitrine federate fit`.
void add_federate_fit(CLI::App& federate, Command& command);
/// `vitrine federate score`.
void add_federate_score(CLI::App& federate, Command& command);

/// What a federation reads beside its file, for refuse_same_file: the base, models and adapters.
std::vector<NamedPath> member_paths(const vitrine::FederationSpec& spec);
/// The federation file. Hashes of its members' large files are kept (model_hashes.h).
vitrine::FederationSpec load_federation_spec(const std::string& path,
                                             HashCache cache = HashCache::kUse);

/// Names the federation, its members and their hashes in a log's head: of each specialist that of
/// its first weights ("specialist NAME") and of all its files ("specialist NAME: all files"), which
/// logs of earlier versions lack.
void add_members(const vitrine::FederationSpec& spec, vitrine::LogHeader& header);

/// How many layers each specialist's model has, and the most.
std::vector<int64_t> depths_of(const vitrine::FederationSpec& spec);
int64_t num_layers_of(const vitrine::FederationSpec& spec);

std::vector<std::string> names_of(const vitrine::FederationSpec& spec);
/// For a terminal: control characters are taken out, and what is longer is cut between characters.
std::string short_name(const std::string& name, size_t most_bytes);

/// `vitrine inspect` of a federation file.
int inspect_federation(const std::string& path, const DeviceOptions& device, bool json);

/// A token of a text as a federation predicted it; its window is numbered among all texts'.
struct ScoredToken : vitrine::PredictedToken {
  size_t text = 0;  ///< which of the texts
};

/// What fit and score read.
struct TextArguments {
  std::string federation;
  std::vector<std::string> texts;
  int window = 256;
  bool json = false;
  DeviceOptions device;
  void add_to(CLI::App& command);
};

/// Texts as ids, cut into windows that each begin anew.
struct ScoredTexts {
  std::vector<std::string> names, hashes;  ///< [texts]; a name is a path where two are the same
  std::vector<std::vector<int32_t>> ids;   ///< [texts]
  size_t num_tokens() const;
};
/// Refuses a window that a model has no positions for.
ScoredTexts read_texts(const std::vector<std::string>& paths, const vitrine::FederationSpec& spec,
                       int window);

/// Whether a fit is judged by this window and not fitted on it: of all windows, this share, evenly.
bool is_held_out(size_t window, double share);
/// Throws kBadFile: a specialist's log-probability is no number.
[[noreturn]] void refuse_no_number(const std::string& specialist, const std::string& text,
                                   double found);

inline constexpr const char* kFederateCancelled = "federate: cancelled before the end";
/// Options for scoring windows of so many tokens.
vitrine::EngineOptions text_options(const DeviceOptions& device, int window);
/// Every token but the first of each window, of one window in `every`. Stops where Ctrl-C was
/// pressed (kCancelled). Throws kBadFile for a specialist whose log-probability is no number.
void score_texts(vitrine::Federation& federation, const ScoredTexts& texts, int window,
                 const std::function<void(const ScoredToken&)>& on_token, size_t every = 1);

}  // namespace cli

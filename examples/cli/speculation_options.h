// SPDX-License-Identifier: Apache-2.0
// --speculate and what belongs to it: who guesses, how far, and what it came to.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common.h"

namespace cli {

struct SpeculationArguments {
  std::string kind = "off";  // a name, or a name=value
  int max_drafts = 8, max_depth = 0;
  std::string costs_file, acceptance = "noise";
  std::vector<int> head_layers;

  /// --speculate, --head-layers, --draft-max, --accept, --draft-threshold, --draft-ungated,
  /// --draft-costs.
  void add_to(CLI::App& command);
  bool is_given() const { return kind != "off"; }
  /// Whether the drafter computes keys and values of a text: a draft model, heads, an MTP layer.
  bool has_dear_texts() const;
  /// Refuses options that say how to guess where nobody does.
  void check() const;
  /// LogHeader::speculation; empty where nobody guesses.
  std::vector<std::pair<std::string, std::string>> description() const;
  /// Room in a step for drafts, and what the drafter reads of the model at that path (empty: of
  /// several); draft heads are opened, else it is null.
  std::unique_ptr<vitrine::Drafter> reserve_steps(const std::string& model,
                                                  vitrine::EngineOptions& options) const;
  /// Makes the drafter where it is null, and measures or reads what passes cost where the gate is
  /// to stand before it. Before an audit sink is set. `drafter` is to outlive the answers,
  /// `tokenizer` both.
  vitrine::SpeculationOptions apply(vitrine::Stepper& model, const vitrine::Tokenizer& tokenizer,
                                    std::unique_ptr<vitrine::Drafter>& drafter) const;

 private:
  bool checks_by_rejection() const { return acceptance == "rejection"; }
  /// Under rejection sampling what is asked for decides about the answer, so a gate stands there
  /// only where it is asked for.
  bool has_gate() const {
    return kind == "auto" || threshold_->count() > 0 || !(is_ungated_ || checks_by_rejection());
  }

  double threshold_value_ = 1.0;
  CLI::Option* threshold_ = nullptr;
  bool is_ungated_ = false;
};

/// The gate of these costs before a drafter.
void add_gate(const vitrine::Drafter& drafter, vitrine::PassCosts costs,
              vitrine::SpeculationOptions& options);

/// --draft-tree, which excludes --draft-max.
void add_draft_tree(CLI::App& command, int& max_drafts, int& max_depth);
/// Room in the pool of keys and values for the branches of a tree, where nothing says how large it
/// is. The context's length is known.
void reserve_branches(int max_drafts, int max_depth, vitrine::EngineOptions& options);
/// Sets aside a part of --kv-bytes, where that is given, for keys and values of who guesses, or as
/// much as was set aside before: as many positions as for the model at that path. For heads (null:
/// none), which have some whatever the text's length, and beside several models (an empty path) it
/// is what they need, up to the half.
void reserve_draft_bytes(const std::string& kind, const std::string& model,
                         const vitrine::Drafter* heads, vitrine::EngineOptions& options);
/// --head-layers.
void add_head_layers(CLI::App& command, std::vector<int>& layers);
/// The forms of --speculate, for messages: "ngram, suffix, mtp, draft=MODEL, exit=LAYER, …,
/// eagle3=HEADS".
std::string drafter_forms();
/// The path of a draft model in such a form; empty for another one.
std::string draft_model_of(const std::string& kind);
/// Refuses what is none of them.
void check_drafter_form(const std::string& kind);
/// The layers whose input it reads, of the model at that path.
std::vector<int> layers_read_by(const std::string& kind, const std::string& model);
/// Opens the draft heads of a form, for the model at that path; null for another form.
std::unique_ptr<vitrine::Drafter> open_heads_of(const std::string& kind, const std::string& model,
                                                const std::vector<int>& layers);
/// Makes another drafter by such a form, for the model and its tokenizer.
std::unique_ptr<vitrine::Drafter> make_drafter_of(const std::string& kind, vitrine::Stepper& model,
                                                  const vitrine::Tokenizer& tokenizer);

/// A table of costs as --draft-costs reads it and `bench speculate --cost --json` writes it.
vitrine::PassCosts read_pass_costs(const std::string& path);
nlohmann::ordered_json pass_costs_json(const vitrine::PassCosts& costs);

/// "; suffix: 2.41 tokens a pass, 62 of 97 guesses right"; empty where nobody guessed. A problem is
/// told on a line of its own.
std::string speculation_note(const vitrine::SpeculationCounts& counts);
/// Lines of --summary.
std::string speculation_text(const vitrine::SpeculationCounts& counts);
nlohmann::ordered_json speculation_json(const vitrine::SpeculationCounts& counts);

}  // namespace cli

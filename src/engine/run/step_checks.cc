// SPDX-License-Identifier: Apache-2.0
#include "engine/run/step_checks.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/run/kv_choice.h"
#include "engine/run/step_rows.h"
#include "ops/draft_input.h"

namespace vitrine::engine {

namespace {

[[noreturn]] void refuse_step(const std::string& what) {
  throw Error(ErrorKind::kInvalidArgument, what);
}

std::string name_of(SequenceId sequence) { return "sequence " + std::to_string(sequence); }

// ---- tokens -------------------------------------------------------------------------------------

void check_tokens(const StepInput& input, int64_t past, int64_t max_context, int64_t vocab_size) {
  const int64_t count =
      DraftTree::is_tree(input) ? DraftTree(input).height() : std::ssize(input.tokens);
  if (count == 0) {
    refuse_step(name_of(input.sequence) + " brings no token to the step; expected one or more");
  }
  if (past + count > max_context) {
    refuse_step(name_of(input.sequence) + " has " + std::to_string(past) + " tokens and brings " +
                std::to_string(count) + ", but the context holds " + std::to_string(max_context) +
                "; shorten the input or raise max_context");
  }
  require_token_ids(input.tokens, vocab_size);
  if (input.next_token < -1 || input.next_token >= vocab_size) {
    refuse_step("next_token " + std::to_string(input.next_token) +
                " is out of range; expected 0 to " + std::to_string(vocab_size - 1) +
                ", or -1 for none");
  }
}

// An engine that has hidden states alone chooses nothing.
void require_no_choices(std::span<const StepInput> inputs) {
  for (const StepInput& input : inputs) {
    if (input.sampler == nullptr && input.guide == nullptr && input.allowed_tokens.empty() &&
        input.num_drafts == 0 && input.num_forced == 0) {
      continue;
    }
    refuse_step(name_of(input.sequence) +
                " brings a sampler, a mask or drafts to an engine that was loaded for hidden "
                "states alone (engine option 'hidden_states_only'); expected an engine without "
                "that option");
  }
}

// ---- drafts -------------------------------------------------------------------------------------

void check_draft_count(const StepInput& input) {
  if (input.num_drafts == 0) return;
  if (input.num_drafts > 0 && input.num_drafts < std::ssize(input.tokens)) return;
  refuse_step(name_of(input.sequence) + ", num_drafts " + std::to_string(input.num_drafts) +
              "; expected 0 to " +
              std::to_string(std::max<std::ptrdiff_t>(std::ssize(input.tokens) - 1, 0)) +
              ", with a token before the drafts");
}

[[noreturn]] void refuse_tree(const StepInput& input, const std::string& what) {
  refuse_step(name_of(input.sequence) + ", draft_parents: " + what);
}

// A tree's parents are read only behind this.
void check_draft_tree(const StepInput& input) {
  check_draft_count(input);
  const std::span<const int32_t> parents = input.draft_parents;
  if (std::ssize(parents) != input.num_drafts) {
    refuse_tree(input, std::to_string(parents.size()) +
                           " are given; expected one for each of the " +
                           std::to_string(input.num_drafts) + " drafts");
  }
  if (!input.routes.empty()) refuse_tree(input, "routes are forced; expected a chain of drafts");
  const auto known = static_cast<int32_t>(input.tokens.size()) - input.num_drafts;
  for (int32_t draft = 0; draft < input.num_drafts; ++draft) {
    const int32_t parent = parents[static_cast<size_t>(draft)], token = known + draft;
    if (parent < known - 1 || parent >= token) {
      refuse_tree(input, "draft " + std::to_string(draft) + " stands behind token " +
                             std::to_string(parent) + "; expected " + std::to_string(known - 1) +
                             " to " + std::to_string(token - 1));
    }
    for (int32_t other = 0; other < draft; ++other) {
      const bool is_twin = parents[static_cast<size_t>(other)] == parent &&
                           input.tokens[static_cast<size_t>(known) + static_cast<size_t>(other)] ==
                               input.tokens[static_cast<size_t>(token)];
      if (!is_twin) continue;
      refuse_tree(input, "drafts " + std::to_string(other) + " and " + std::to_string(draft) +
                             " are one token behind one token; expected different ones");
    }
  }
}

// ---- routes -------------------------------------------------------------------------------------

[[noreturn]] void refuse_route(const StepInput& input, size_t index, const std::string& what) {
  refuse_step("forced route " + std::to_string(index) + " of " + name_of(input.sequence) + " " +
              what);
}

std::string range(int64_t end) { return "; expected 0 to " + std::to_string(end - 1); }

void check_route(const AuditLayout& layout, const StepInput& input, size_t index) {
  const ForcedRoute& route = input.routes[index];
  const auto tokens = static_cast<int64_t>(input.tokens.size());
  const auto layers = static_cast<int64_t>(layout.layers.size());
  if (route.token < 0 || route.token >= tokens) {
    refuse_route(input, index, "names token " + std::to_string(route.token) + range(tokens));
  }
  if (route.layer < 0 || route.layer >= layers) {
    refuse_route(input, index, "names layer " + std::to_string(route.layer) + range(layers));
  }
  const AuditLayout::Layer& layer = layout.layers[static_cast<size_t>(route.layer)];
  if (layer.top_k == 0) {
    refuse_route(input, index,
                 "names layer " + std::to_string(route.layer) +
                     ", which is dense; expected a layer with experts");
  }
  if (route.expert < 0 || route.expert >= layer.num_experts) {
    refuse_route(input, index,
                 "names expert " + std::to_string(route.expert) + range(layer.num_experts));
  }
  const bool is_weight = std::isfinite(route.weight) && route.weight >= 0;
  if (!is_weight && route.weight != ForcedRoute::kRouterWeight) {
    refuse_route(input, index,
                 "has weight " + std::to_string(route.weight) +
                     "; expected 0 or more, or ForcedRoute::kRouterWeight");
  }
}

// ---- layers -------------------------------------------------------------------------------------

void require_level(const kv::BlockPool& pool, SequenceId sequence) {
  const int64_t layer = pool.first_lagging_layer(sequence);
  if (layer < 0) return;
  refuse_step(name_of(sequence) + " has " + std::to_string(pool.get(sequence).length) +
              " tokens, and layer " + std::to_string(layer) + " has seen " +
              std::to_string(pool.layer_length(sequence, layer)) +
              " of them; run the others through the layers from there on (step_layers), or "
              "truncate it");
}

// What layers further up run: tokens that those below have seen, and they not.
void check_continued(const StepInput& input, const kv::BlockPool& pool, LayerRange layers) {
  const auto count = static_cast<int64_t>(input.tokens.size());
  const int64_t past = pool.layer_length(input.sequence, layers.first);
  const int64_t seen = pool.layer_length(input.sequence, layers.first - 1);
  if (past + count > seen) {
    refuse_step(name_of(input.sequence) + " brings " + std::to_string(count) + " tokens to layer " +
                std::to_string(layers.first) + ", but the layer below has seen " +
                std::to_string(seen - past) + " that it has not; expected at most those");
  }
  const std::span<const int32_t> history = pool.get(input.sequence).history;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t own = history[static_cast<size_t>(past + i)];
    const int32_t given = input.tokens[static_cast<size_t>(i)];
    if (own == given) continue;
    refuse_step(name_of(input.sequence) + " has token " + std::to_string(own) + " at position " +
                std::to_string(past + i) + ", and brings " + std::to_string(given) +
                " to a higher layer; expected the same");
  }
}

// ---- room ---------------------------------------------------------------------------------------

// A full context is refused by check_tokens().
void require_fit(const StepFit& fit) {
  if (fit.tokens == 0) refuse_step("a step needs at least one token");
  if (fit.tokens > fit.max_tokens) {
    refuse_step("a step of " + std::to_string(fit.tokens) + " tokens is over max_step_tokens, " +
                std::to_string(fit.max_tokens) + "; split it");
  }
  if (fit.rows > fit.max_rows) {
    refuse_step("a step with " + std::to_string(fit.rows) +
                " rows of logits is over max_logit_rows, " + std::to_string(fit.max_rows) +
                "; split it");
  }
  if (fit.blocks > fit.free_blocks) {
    throw Error(ErrorKind::kOutOfMemory,
                "the step needs " + std::to_string(fit.blocks) + " KV blocks and " +
                    std::to_string(fit.free_blocks) +
                    " are free; release a sequence or load the engine with more kv_bytes");
  }
}

}  // namespace

void require_token_ids(std::span<const int32_t> ids, int64_t vocab_size) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocab_size) continue;
    refuse_step("token id " + std::to_string(id) + " is out of range; expected 0 to " +
                std::to_string(vocab_size - 1));
  }
}

StepFit measure_step(std::span<const StepInput> inputs, const kv::BlockPool& pool,
                     const EngineOptions& options) {
  StepFit fit;
  fit.max_tokens = options.max_step_tokens;
  fit.max_rows = options.max_logit_rows;
  kv::BlockPool::Tally tally(pool);
  int64_t branch_blocks = 0;
  for (const StepInput& input : inputs) {
    check_draft_count(input);
    const auto tokens = static_cast<int64_t>(input.tokens.size());
    int64_t count = tokens,
            height = tokens;  // positions of its own blocks, and of the longest branch
    if (DraftTree::is_tree(input)) {
      check_draft_tree(input);
      const DraftTree tree(input);
      count = tree.end_of_branch(0);
      height = tree.height();
      branch_blocks += tree.branch_blocks(pool, pool.get(input.sequence).length);
    }
    if (!tally.add(input.sequence, count)) {
      refuse_step(name_of(input.sequence) + " stands twice in one step");
    }
    fit.tokens += tokens;
    fit.rerun_tokens += pool.get(input.sequence).length - pool.computed_length(input.sequence);
    fit.rows += static_cast<int64_t>(StepRows::count(input));
    const bool is_full = pool.get(input.sequence).length + height > options.max_context;
    if (is_full && fit.full_sequence == 0) fit.full_sequence = input.sequence;
  }
  fit.blocks = tally.blocks() + (pool.has_full_layers() ? branch_blocks : 0);
  fit.free_blocks = pool.num_free();
  if (!pool.has_windows()) return fit;
  const int64_t of_windows = pool.num_free_window() - tally.window_blocks() - branch_blocks;
  if (!pool.has_full_layers() || of_windows < fit.free_blocks - fit.blocks) {
    fit.blocks = tally.window_blocks() + branch_blocks;
    fit.free_blocks = pool.num_free_window();
  }
  return fit;
}

void check_mask(const StepInput& input, std::span<const uint32_t> mask, size_t vocab_size) {
  const size_t words = (vocab_size + 31) / 32;
  if (mask.empty() || mask.size() == words) return;
  refuse_step(name_of(input.sequence) + " brings a mask of " + std::to_string(mask.size()) +
              " words; expected " + std::to_string(words) + " for " + std::to_string(vocab_size) +
              " tokens");
}

void check_choices(const StepInput& input, size_t vocab_size) {
  const size_t behind = input.tokens.size() - (input.next_token < 0 ? 1 : 0);
  if (input.num_forced < 0 || static_cast<size_t>(input.num_forced) > behind) {
    refuse_step(name_of(input.sequence) + " brings num_forced " + std::to_string(input.num_forced) +
                "; expected 0 to " + std::to_string(behind) +
                ", the tokens that are known behind its first");
  }
  if (input.guide != nullptr && !input.allowed_tokens.empty()) {
    refuse_step(name_of(input.sequence) + " brings a guide and a mask; expected one of them");
  }
  check_mask(input, input.allowed_tokens, vocab_size);
  check_draft_count(input);
  if (input.num_drafts == 0) return;
  if (input.rows == StepInput::Rows::kNone || input.next_token >= 0 || input.num_forced != 0 ||
      !input.allowed_tokens.empty()) {
    refuse_step(name_of(input.sequence) +
                " brings drafts with rows kNone, next_token, num_forced or allowed_tokens; "
                "expected rows that choose, and a guide for masks");
  }
}

void check_forced_routes(const AuditLayout& layout, const StepInput& input) {
  const std::span<const ForcedRoute> routes = input.routes;
  for (size_t index = 0; index < routes.size(); ++index) check_route(layout, input, index);
  for (size_t first = 0; first < routes.size();) {
    const int32_t token = routes[first].token, layer = routes[first].layer;
    if (first > 0) {
      const ForcedRoute& before = routes[first - 1];
      if (token < before.token || (token == before.token && layer <= before.layer)) {
        refuse_route(input, first,
                     "stands out of order (token " + std::to_string(token) + ", layer " +
                         std::to_string(layer) + "); expected them by token, then layer");
      }
    }
    size_t end = first + 1;
    for (; end < routes.size() && routes[end].token == token && routes[end].layer == layer; ++end) {
      for (size_t other = first; other < end; ++other) {
        if (routes[other].expert != routes[end].expert) continue;
        refuse_route(input, end,
                     "names expert " + std::to_string(routes[end].expert) + " of layer " +
                         std::to_string(layer) + " twice for one token; expected each expert once");
      }
    }
    const auto top_k = static_cast<size_t>(layout.layers[static_cast<size_t>(layer)].top_k);
    if (end - first != top_k) {
      refuse_route(input, first,
                   "begins " + std::to_string(end - first) + " routes of token " +
                       std::to_string(token) + " in layer " + std::to_string(layer) +
                       "; expected all " + std::to_string(top_k));
    }
    first = end;
  }
}

void require_layers(const LoadedModel& model) {
  if (!model.executor->runs_layers()) {
    require_codec_feature(model.options, KvFeature::kPartialDepth, "steps of a part of the layers");
    throw Error(
        ErrorKind::kUnsupported,
        "CUDA's fused kernels run all layers or none, so no early exit guesses there (exit, "
        "hispec); use --kernels reference or --device cpu");
  }
  if (model.graph.has_state()) {
    throw Error(ErrorKind::kUnsupported,
                "some layers of this model keep a state of a sequence, which a step of a part of "
                "the layers would leave behind, so no early exit guesses for it (exit, hispec); "
                "expected a step of all layers, another drafter, or a model without such layers");
  }
}

void require_plain(std::span<const StepInput> inputs) {
  for (const StepInput& input : inputs) {
    if (input.num_drafts == 0 && input.routes.empty()) continue;
    refuse_step("a step of some layers takes neither drafts nor forced routes");
  }
}

void StepChecks::check(std::span<const StepInput> inputs) const {
  for (const StepInput& input : inputs) require_level(model_.pool, input.sequence);
  check_trees(inputs);
  if (model_.options.hidden_states_only) require_no_choices(inputs);
  check_new_tokens(inputs);
}

void StepChecks::check_new_tokens(std::span<const StepInput> inputs) const {
  const int64_t vocab_size = model_.config.vocab_size;
  for (const StepInput& input : inputs) {
    const int64_t past = model_.pool.get(input.sequence).length;
    check_tokens(input, past, model_.options.max_context, vocab_size);
    check_choices(input, static_cast<size_t>(vocab_size));
    check_forced_routes(model_.layout, input);
  }
  require_fit(measure_step(inputs, model_.pool, model_.options));
}

void StepChecks::check_trees(std::span<const StepInput> inputs) const {
  int64_t branches = 0;
  for (const StepInput& input : inputs) {
    if (!DraftTree::is_tree(input)) continue;
    if (!model_.executor->runs_trees()) {
      require_codec_feature(model_.options, KvFeature::kTrees, "drafts in a tree");
      throw Error(
          ErrorKind::kUnsupported,
          "drafts in a tree need fused kernels and a model that keeps no state of a sequence; "
          "bring a chain of drafts");
    }
    check_draft_tree(input);
    branches += DraftTree(input).num_branches();
  }
  if (branches > trees_.max_branches()) {
    refuse_step("the drafts of a step have " + std::to_string(branches) +
                " branches beside each sequence's own; expected " +
                std::to_string(trees_.max_branches()) + " at most");
  }
}

void StepChecks::check_layers(std::span<const StepInput> inputs, LayerRange layers,
                              std::span<const float> residual, bool records) const {
  const kv::BlockPool& pool = model_.pool;
  const int count = model_.graph.num_layers;
  if (layers.first < 0 || layers.first >= layers.end || layers.end > count) {
    refuse_step("layers " + std::to_string(layers.first) + " to " + std::to_string(layers.end) +
                " (excluded) were asked for; expected some of 0 to " + std::to_string(count));
  }
  require_layers(model_);
  if (records && layers.end - layers.first < count) {
    throw Error(ErrorKind::kUnsupported,
                "a step of some layers is no pass that could be recorded; expected no audit sink, "
                "or set_audit_mode(kNone) meanwhile");
  }
  size_t tokens = 0;
  for (const StepInput& input : inputs) {
    tokens += input.tokens.size();
    const int64_t past = pool.layer_length(input.sequence, layers.first);
    for (int layer = layers.first; layer < layers.end; ++layer) {
      const int64_t length = pool.layer_length(input.sequence, layer);
      if (length == past) continue;
      refuse_step(name_of(input.sequence) + " has " + std::to_string(past) +
                  " positions in layer " + std::to_string(layers.first) + " and " +
                  std::to_string(length) + " in layer " + std::to_string(layer) +
                  "; expected layers that stand equal");
    }
  }
  const bool takes_rows = layers.first > 0 || ops::takes_rows(model_.graph);
  const size_t wanted = takes_rows ? tokens * static_cast<size_t>(model_.config.hidden_size) : 0;
  if (residual.size() != wanted) {
    refuse_step("a step from layer " + std::to_string(layers.first) + " got " +
                std::to_string(residual.size()) + " numbers of the residual stream; expected " +
                std::to_string(wanted) + (wanted == 0 ? "" : ", tokens times hidden size"));
  }
  if (layers.first == 0) return check_new_tokens(inputs);
  StepFit fit = measure_step(inputs, pool, model_.options);
  fit.blocks = 0;  // its positions have theirs
  require_fit(fit);
  for (const StepInput& input : inputs) {
    check_choices(input, static_cast<size_t>(model_.config.vocab_size));
    check_continued(input, pool, layers);
  }
}

}  // namespace vitrine::engine

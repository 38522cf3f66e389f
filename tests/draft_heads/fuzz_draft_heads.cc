// SPDX-License-Identifier: Apache-2.0
// fuzz_draft_heads SECONDS [SEED]: mutates folders of heads, and guesses with what is read.
//
// Every outcome must be guesses of the model's tokens, or vitrine::Error with one line.
#include <stdexcept>

#include "draft_heads/head_kind.h"
#include "head_folders.h"
#include "tests/support/fuzz.h"
#include "tests/support/mutator.h"

namespace {

using namespace vitrine;
using testing::Files;

std::vector<std::string> hostile_head_strings() {
  return {"\"eagle3\"",
          "\"peagle\"",
          "\"speculators_model_type\"",
          "\"transformer_layer_config\"",
          "\"eagle_config\"",
          "\"eagle_aux_hidden_state_layer_ids\"",
          "\"draft_vocab_size\"",
          "\"num_hidden_layers\"",
          "\"truncated_vocab_size\"",
          "\"token_map\"",
          "\"d2t\"",
          "\"mask_hidden\"",
          "\"embed_tokens.weight\"",
          "\"fc_norm\"",
          "\"fcs.0.weight\"",
          "\"layer_types\"",
          "\"sliding_window\"",
          "\"qwen3\"",
          "\"yarn\"",
          "\"I64\"",
          "\"F16\"",
          "\"shape\""};
}

/// Shows a text and asks for guesses, twice.
void guess_with(Drafter& drafter) {
  const auto width = static_cast<size_t>(std::ssize(drafter.feature_layers()) * testing::kHidden);
  const std::vector<float> features = testing::random_floats(80 * width, 1);
  const DraftTextId text = drafter.start({"", 4, 100});
  for (int64_t position = 0; position < 80; position += 40) {
    std::vector<int32_t> tokens(40, 3);
    tokens.resize(position == 0 ? 41 : 40, 5);
    drafter.commit(text, tokens);
    drafter.observe(text, position,
                    std::span(features).subspan(static_cast<size_t>(position) * width, 40 * width));
    int32_t guesses[7] = {};
    DraftProposal proposal{text, guesses, 0};
    drafter.propose({&proposal, 1});
    if (proposal.count < 0 || proposal.count > 7) throw std::runtime_error("a count of guesses");
    for (int32_t i = 0; i < proposal.count; ++i) {
      if (guesses[i] < 0 || guesses[i] >= testing::kVocabulary) throw std::runtime_error("a token");
    }
  }
  drafter.release(drafter.fork(text), true);
}

}  // namespace

int main(int argc, char** argv) {
  return testing::run_fuzz(
      argc, argv, "fuzz_draft_heads", "folders", [](uint64_t seed) -> testing::FuzzTarget {
        struct State {
          explicit State(uint64_t seed) : mutator(seed, hostile_head_strings()) {}
          testing::HeadFolders folders;
          std::vector<std::pair<std::string, Files>> healthy;
          testing::Mutator mutator;
          testing::TemporaryFolder scratch;
        };
        const auto state = std::make_shared<State>(seed);
        for (const std::string& kind : draft_heads::head_names()) {
          Files files;
          for (const char* name : {"config.json", "model.safetensors"}) {
            files[name] = testing::read_bytes(state->folders.heads(kind) + "/" + name);
          }
          state->healthy.emplace_back(kind, files);
        }
        const auto run = [state](long iteration) -> std::optional<bool> {
          const auto healthy = std::ssize(state->healthy);
          auto [kind, files] = state->healthy[static_cast<size_t>(iteration % healthy)];
          if (iteration >= healthy) state->mutator.mutate(files);
          const std::string folder = state->scratch / "heads";
          std::filesystem::remove_all(folder);
          std::filesystem::create_directories(folder);
          for (const auto& [name, content] : files) {
            testing::write_bytes(std::filesystem::path(folder) / name, content);
          }
          try {
            guess_with(*draft_heads::make_heads(kind, folder, state->folders.target()));
            return true;
          } catch (const Error& error) {
            testing::check_message(error);
            return false;
          }
        };
        return {.run = run, .num_healthy = 3};
      });
}

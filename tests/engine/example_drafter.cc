// SPDX-License-Identifier: Apache-2.0
// A drafter as whoever adds one writes it: this file, and its line in CMakeLists.txt. It guesses
// that each text goes on with its last token.
#include <map>
#include <utility>
#include <vector>

#include "speculate/registry.h"

namespace vitrine::speculate {
namespace {

class ExampleDrafter : public Drafter {
 public:
  std::string_view name() const override { return "example-drafter"; }
  DraftTextId start(const DraftText& /*text*/) override { return add({}); }
  DraftTextId fork(DraftTextId text) override { return add(texts_.at(text)); }
  void commit(DraftTextId text, std::span<const int32_t> tokens) override {
    std::vector<int32_t>& all = texts_.at(text);
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  void truncate(DraftTextId text, int64_t length) override {
    texts_.at(text).resize(static_cast<size_t>(length));
  }
  void propose(std::span<DraftProposal> proposals) override {
    for (DraftProposal& proposal : proposals) {
      const std::vector<int32_t>& text = texts_.at(proposal.text);
      if (text.empty() || proposal.tokens.empty()) continue;
      proposal.tokens[0] = text.back();
      proposal.count = 1;
    }
  }
  void release(DraftTextId text, bool /*is_whole*/) override { texts_.erase(text); }

 private:
  DraftTextId add(std::vector<int32_t> text) {
    texts_[++last_] = std::move(text);
    return last_;
  }

  std::map<DraftTextId, std::vector<int32_t>> texts_;
  DraftTextId last_ = 0;
};

std::unique_ptr<Drafter> make_example_drafter(const DrafterOptions& /*options*/) {
  return std::make_unique<ExampleDrafter>();
}

}  // namespace

VITRINE_REGISTER_DRAFTER("example-drafter", &make_example_drafter);

}  // namespace vitrine::speculate

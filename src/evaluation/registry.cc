// SPDX-License-Identifier: Apache-2.0
#include "core/registry.h"

#include "evaluation/item.h"

namespace vitrine::evaluation {

namespace {

core::Registry<std::string, Scorer>& scorers() {
  static core::Registry<std::string, Scorer> all("scorer");
  return all;
}

core::Registry<std::string, Maker>& makers() {
  static core::Registry<std::string, Maker> all("maker of items");
  return all;
}

template <typename Entry>
std::vector<std::string> names_of(const core::Registry<std::string, Entry>& registry) {
  std::vector<std::string> names;
  for (const Entry& entry : registry.entries()) names.push_back(entry.name);
  return names;
}

}  // namespace

bool register_scorer(const Scorer& scorer) { return scorers().add(scorer.name, scorer); }
bool register_maker(const Maker& maker) { return makers().add(maker.name, maker); }
const Scorer* find_scorer(const std::string& name) { return scorers().find(name); }
const Maker* find_maker(const std::string& name) { return makers().find(name); }
std::vector<std::string> scorer_names() { return names_of(scorers()); }
std::vector<std::string> maker_names() { return names_of(makers()); }

}  // namespace vitrine::evaluation

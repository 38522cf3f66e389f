// SPDX-License-Identifier: Apache-2.0
// Prints a line for each table: its name and what its dispatcher asks a processor for.
#include <cstdio>
#include <string>

#include "kernels/cpu/cpu_features.h"

int main() {
  for (const vitrine::kernels::TableNeeds& table : vitrine::kernels::kTableNeeds) {
    std::printf("%s: %s\n", std::string(table.isa).c_str(),
                vitrine::kernels::feature_names(table.features).c_str());
  }
}

// SPDX-License-Identifier: Apache-2.0
// Windows and sinks of attention.
#include "attention_fixture.h"

namespace vitrine::kernels::testing {
namespace {

/// A window hides what lies before it, whatever it holds; a sink takes its share of the sum. Tokens
/// in one tile have the bits of each alone, in every table.
TEST(Attention, WindowsAndSinks) {
  Random random(21);
  for (const auto& [head_dim, format] : {std::pair{10, KvFormat::kF32},
                                         {72, KvFormat::kF32},
                                         {64, KvFormat::kF16},
                                         {40, KvFormat::kBF16},
                                         {9, KvFormat::kI16},
                                         {80, KvFormat::kI16}}) {
    const int32_t positions = 290;
    const Sequence sequence = Sequence(random, positions, head_dim).rounded(format);
    const std::vector<float> nothing(static_cast<size_t>(head_dim), NAN);
    for (const int32_t window : {0, 1, 15, 16, 17, 63, 64, 65, 100, 289, 1000}) {
      for (const bool has_sinks : {false, true}) {
        const auto [first, tokens, heads] =
            std::tuple{random.integer(0, 200), random.integer(1, 40), random.integer(1, 6)};
        const int32_t seen = window == 0 ? 0 : std::max(0, first - window + 1);
        const std::vector<float> sinks = random.normals(static_cast<size_t>(heads), 2.0f);
        const size_t row = static_cast<size_t>(heads) * static_cast<size_t>(head_dim);
        const auto queries = random.normals(static_cast<size_t>(tokens) * row, 2.0f);
        const float* sink = has_sinks ? sinks.data() : nullptr;
        for (const CpuKernels* table : available_tables()) {
          Store store(random, positions, 2, head_dim, 48, format);
          for (int32_t p = 0; p < first + tokens; ++p) {
            const size_t at = static_cast<size_t>(p) * static_cast<size_t>(head_dim);
            const bool is_seen = p >= seen;
            store.write(*table, p, 1, is_seen ? &sequence.keys[at] : nothing.data(),
                        is_seen ? &sequence.values[at] : nothing.data());
          }
          const std::vector<float> out =
              run_tile(*table, store, first, 1, queries, tokens, window, sink);
          for (int32_t t = 0; t < tokens; ++t) {
            const auto* begin = queries.data() + static_cast<size_t>(t) * row;
            const std::vector<float> alone(begin, begin + row);
            const std::vector<float> one =
                run_tile(portable_kernels(), store, first + t, 1, alone, 1, window, sink);
            ASSERT_EQ(memcmp(one.data(), &out[static_cast<size_t>(t) * row], sizeof(float) * row),
                      0)
                << table->isa << " head_dim " << head_dim << ", token " << t << " of " << tokens
                << " from " << first << ", window " << window;
          }
          const int32_t last = first + tokens - 1;
          for (int32_t h = 0; h < heads; ++h) {
            const size_t at = static_cast<size_t>(tokens - 1) * row +
                              static_cast<size_t>(h) * static_cast<size_t>(head_dim);
            const std::vector<double> expected =
                reference(sequence, last, &queries[at], 1.0 / std::sqrt(head_dim),
                          window == 0 ? 0 : std::max(0, last - window + 1),
                          has_sinks ? sinks[static_cast<size_t>(h)] : -INFINITY);
            for (int32_t d = 0; d < head_dim; ++d) {
              ASSERT_NEAR(out[at + static_cast<size_t>(d)], expected[static_cast<size_t>(d)],
                          format == KvFormat::kI16 ? 0.03 : 1e-4)
                  << table->isa << " window " << window << " sinks " << has_sinks;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace vitrine::kernels::testing

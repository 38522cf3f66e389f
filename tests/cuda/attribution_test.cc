// SPDX-License-Identifier: Apache-2.0
// Rows that are kept, and the terms that come of them.
#include "kernels/cuda/attribution/attribution.h"

#include "tests/cuda/cuda_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

TEST(CudaAttribution, CopiesWhatIsAskedForAndNothingElse) {
  Random random(41);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    emulator::set_seed(seed);
    const DeviceArray<float> wide(random.normals(5 * 700)), narrow(random.normals(5 * 3));
    const DeviceArray<int32_t> index(std::vector<int32_t>{4, 0, 4});
    DeviceArray<float> to(3 * 1000);
    RowCopies copies;
    copies.count = 2;
    copies.index = index.data();
    copies.copies[0] = {wide.data(), 700, 699, to.data() + 2, 1000};
    copies.copies[1] = {narrow.data(), 3, 2, to.data() + 900, 1000};
    ASSERT_TRUE(ok(copy_rows(copies, 3, nullptr)));
    for (size_t row = 0; row < 3; ++row) {
      const auto from = static_cast<size_t>(index[row]);
      for (size_t i = 0; i < 1000; ++i) {
        const float found = to[row * 1000 + i];
        if (i >= 2 && i < 701) {
          EXPECT_EQ(found, wide[from * 700 + i - 2]);
        } else if (i >= 900 && i < 902) {
          EXPECT_EQ(found, narrow[from * 3 + i - 900]);
        } else {
          EXPECT_TRUE(std::isnan(found)) << i;
        }
      }
    }
  }
}

// A stream of an embedding, two experts and a shared one with its gate, and another block.
TEST(CudaAttribution, TermsAgainstDouble) {
  const int64_t hidden = 77, vocab = 31;
  const int32_t vectors = 5, terms = 5, rows = 3, stride = 29;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    using Shared = AttributionPart::Shared;
    const Shared shared = std::array{Shared::kNone, Shared::kGated, Shared::kWhole}[seed];
    emulator::set_seed(seed);
    Random random(static_cast<uint32_t>(43 + seed));
    const DeviceArray<float> kept(random.normals(static_cast<size_t>(rows * vectors * hidden)));
    const DeviceArray<float> weights(random.normals(static_cast<size_t>(rows * vectors)));
    const DeviceArray<float> head(random.normals(static_cast<size_t>(vocab * hidden)));
    const DeviceArray<float> norm(random.normals(static_cast<size_t>(hidden)));
    const DeviceArray<float> residual(random.normals(static_cast<size_t>(3 * hidden)));
    const DeviceArray<int32_t> row_tokens(std::vector<int32_t>{2, 0, 1});
    // One choice is its best token, one another, of one the host knows better.
    const DeviceArray<int32_t> chosen(std::vector<int32_t>{19, 7, -1});
    const DeviceArray<int32_t> best(std::vector<int32_t>{5, 19, 8, 8, 8, 7, 11, 8, 8, 8, 4, 2});
    const DeviceArray<int32_t> row_choices(std::vector<int32_t>{1, 0, 2});
    const DeviceArray<int32_t> host_choices(std::vector<int32_t>{-1, -1, -1, -1, 4, -1});
    const std::vector<int32_t> tokens = {7, 19, 4}, others = {11, 5, 2};
    const DeviceArray<AttributionPart> parts(
        std::vector<AttributionPart>{{.first = 0},
                                     {.first = 1, .count = 3, .multiplier = 0.5f, .shared = shared},
                                     {.first = 4}});
    DeviceArray<int32_t> words(static_cast<size_t>(rows * stride));
    DeviceArray<int32_t> ids(2 * rows);
    DeviceArray<float> scales(rows), direction(static_cast<size_t>(rows * 2 * hidden)),
        dots(static_cast<size_t>(rows * 2 * vectors));
    Attribution of;
    of.hidden = hidden;
    of.vectors = vectors;
    of.kept = kept.data();
    of.kept_weights = weights.data();
    of.parts = parts.data();
    of.num_parts = 3;
    of.num_terms = terms;
    of.head.data = head.data();
    of.head.n = hidden;
    of.norm = norm.data();
    of.eps = 1e-3f;
    of.multiplier = 0.7f;
    of.residual = residual.data();
    of.row_tokens = row_tokens.data();
    of.row_choices = row_choices.data();
    of.host_choices = host_choices.data();
    of.chosen_ids = chosen.data();
    of.best_ids = best.data();
    of.best_stride = 5;
    of.ids = ids.data();
    of.scales = scales.data();
    of.direction = direction.data();
    of.dots = dots.data();
    of.words = words.data();
    of.stride = stride;
    of.terms = 9;
    ASSERT_TRUE(ok(attribute_rows(of, rows, nullptr)));
    for (int32_t row = 0; row < rows; ++row) {
      const float* stream = residual.data() + row_tokens[static_cast<size_t>(row)] * hidden;
      double squares = 0;
      for (int64_t i = 0; i < hidden; ++i) squares += double{stream[i]} * stream[i];
      const double scale = 0.7 / std::sqrt(squares / static_cast<double>(hidden) + 1e-3);
      for (int side = 0; side < 2; ++side) {
        const int64_t id = (side == 0 ? tokens : others)[static_cast<size_t>(row)];
        std::vector<double> dot(static_cast<size_t>(vectors));
        for (size_t v = 0; v < dot.size(); ++v) {
          for (int64_t i = 0; i < hidden; ++i) {
            const auto at =
                static_cast<size_t>((row * vectors + static_cast<int64_t>(v)) * hidden + i);
            dot[v] += double{kept[at]} * head[static_cast<size_t>(id * hidden + i)] *
                      norm[static_cast<size_t>(i)] * scale;
          }
        }
        const float* weight = weights.data() + row * vectors;
        std::vector<double> expected = {dot[0], 0.5 * weight[1] * dot[1], 0.5 * weight[2] * dot[2],
                                        0.5 * dot[3]};
        if (shared == Shared::kNone) expected[3] *= weight[3];
        if (shared == Shared::kGated) expected[3] /= 1 + std::exp(-double{weight[3]});
        expected.push_back(dot[4] - (expected[0] + expected[1] + expected[2] + expected[3]));
        std::vector<float> found(static_cast<size_t>(terms));
        std::memcpy(found.data(), words.data() + row * stride + 9 + side * terms,
                    static_cast<size_t>(terms) * sizeof(float));
        EXPECT_LT(relative_distance(found, expected), 1e-5) << "row " << row << " side " << side;
      }
      EXPECT_EQ(words[static_cast<size_t>(row * stride + 9 + 2 * terms)], -1) << "written behind";
    }
  }
}

TEST(CudaAttribution, RefusesWhatItCannotDo) {
  EXPECT_EQ(copy_rows({}, 1, nullptr).code, kInvalidArguments);
  RowCopies one;
  one.count = 1;
  EXPECT_EQ(copy_rows(one, 0, nullptr).code, kInvalidArguments);
  EXPECT_EQ(attribute_rows({}, 1, nullptr).code, kInvalidArguments);
  Attribution of;
  of.vectors = 1;
  EXPECT_EQ(attribute_rows(of, 0, nullptr).code, kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing

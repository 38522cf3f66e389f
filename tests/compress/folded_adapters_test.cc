// SPDX-License-Identifier: Apache-2.0
// Adapters of a model on a folder whose norms were folded: they are folded, too, or refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <set>

#include "tests/compress/model_divergence.h"
#include "tests/engine/adapter_fixture.h"

namespace vitrine::testing {
namespace {

constexpr const char* kFoldsFile = "/vitrine_folds.tensors";
using Parts = std::vector<std::pair<std::string, float>>;

void copy_settings(const std::string& from, const std::string& to) {
  std::filesystem::create_directory(to);
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    if (entry.path().extension() == ".json") {
      std::filesystem::copy(entry.path(), to / entry.path().filename());
    }
  }
}

/// Writes a model in float32: each tensor of the source as `change` makes it.
template <typename Change>
std::string write_floats(const std::string& source, const std::string& folder, Change change) {
  copy_settings(source, folder);
  const Checkpoint checkpoint = Checkpoint::open(source);
  SafetensorsWriter writer(folder + "/model.safetensors");
  for (const TensorInfo& info : checkpoint.tensors()) {
    writer.declare(info.name, DType::kF32, info.shape);
  }
  writer.begin({{"format", "pt"}});
  for (const TensorInfo& info : checkpoint.tensors()) {
    std::vector<float> values = checkpoint.read_f32(info);
    change(info, values);
    writer.write(info.name, std::as_bytes(std::span(values)));
  }
  writer.finish();
  return folder;
}

/// Makes some of a norm's channels large and what reads them as small: else smoothing finds
/// nothing.
void plant_outliers(const std::string& name, std::vector<float>& values) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  const bool reads = has("q_proj.w") || has("k_proj.w") || has("v_proj.w") || has("gate_proj.w") ||
                     has("up_proj.w") || has("mlp.gate.w");
  for (size_t i = 4; i < values.size(); i += 16) {  // divides every width
    if (name.ends_with("layernorm.weight")) values[i] *= 30;
    if (reads) values[i] /= 30;
  }
}

/// A folded model in float32 beside its source: what rounding does to a quantized one is not there.
class FoldedModel {
 public:
  FoldedModel(const std::string& oracle, const char* scheme, const char* method) {
    const bool is_smoothed = std::string_view(method) == "smoothquant";
    source_ =
        write_floats(oracle_folder(oracle), folder_ / "source", [&](auto& info, auto& values) {
          if (is_smoothed) plant_outliers(info.name, values);
        });
    QuantizeOptions options = calibrated_options(source_, scheme, method, 8, 30, 700);
    quantize_checkpoint(source_, folder_ / "out", options);
    // The file of folds as if it were a model's weights.
    copy_settings(source_, folder_ / "folds");
    std::filesystem::copy(folder_ / "out" + kFoldsFile, folder_ / "folds/model.safetensors");
    const Checkpoint folds = Checkpoint::open(folder_ / "folds");
    const Checkpoint out = Checkpoint::open(folder_ / "out");
    folded_ = write_floats(source_, folder_ / "folded", [&](const auto& info, auto& values) {
      if (out.find(info.name) != nullptr && out.require(info.name).dtype == DType::kF32) {
        values = out.read_f32(out.require(info.name));  // norms, routers and what stayed
        return;
      }
      const TensorInfo* rows = folds.find(info.name + ".rows");
      const TensorInfo* columns = folds.find(info.name + ".columns");
      const auto width = static_cast<size_t>(info.shape.back());
      const std::vector<float> by_row = rows ? folds.read_f32(*rows) : std::vector<float>();
      const std::vector<float> by_column = columns ? folds.read_f32(*columns) : by_row;
      for (size_t i = 0; i < values.size(); ++i) {
        if (rows) values[i] *= by_row[i / width];
        if (columns) values[i] *= by_column[i % width];
      }
    });
    std::filesystem::copy(folder_ / "out" + kFoldsFile, folded_ + kFoldsFile);
    const ModelConfig config = parse_model_config(Checkpoint::open(source_));
    write_adapter(folder_ / "one", adapter_config(3, 3),
                  adapter_tensors(all_modules(config), 3, 1));
    write_adapter(folder_ / "two", adapter_config(2, 4),
                  adapter_tensors(block_modules(config), 2, 9));
    write_adapter(folder_ / "own", adapter_config(3, 3, R"(, "vitrine_made_for_folded": true)"),
                  adapter_tensors(all_modules(config), 3, 1));
  }

  std::string path(const std::string& name) const { return folder_ / name; }
  std::unique_ptr<Engine> load(const std::string& name, const Parts& adapters) const {
    EngineOptions options = test_options();
    options.kv_codecs = {"f32"};
    for (const auto& [adapter, scale] : adapters) options.lora.emplace_back(path(adapter), scale);
    return Engine::load(path(name), options);
  }
  double divergence(const std::string& first, const Parts& first_adapters,
                    const std::string& second, const Parts& second_adapters) const {
    const auto one = load(first, first_adapters), other = load(second, second_adapters);
    const std::vector<int32_t> ids = prompt_ids(60, one->summary().vocab_size, 9);
    WindowOptions window;
    window.window = 30;
    return compare_models(*one, *other, ids, window).mean_kl;
  }

 private:
  TemporaryFolder folder_;
  std::string source_, folded_;
};

TEST(FoldedAdapters, ComputeWhatTheyDoOnTheSource) {
  struct Way {
    const char* oracle;
    const char* scheme;
    const char* method;
  };
  for (const Way way : {Way{"qwen3_moe", "int4", "awq"}, Way{"llama", "int4", "awq"},
                        Way{"qwen2_moe", "int4", "awq"}, Way{"mixtral", "int4", "awq"},
                        Way{"qwen3_moe", "int8-w8a8", "smoothquant"}}) {
    SCOPED_TRACE(std::string(way.oracle) + " " + way.method);
    const FoldedModel model(way.oracle, way.scheme, way.method);
    EXPECT_LT(model.divergence("source", {}, "folded", {}), 1e-7);
    for (const Parts& parts : {Parts{{"one", 1.0f}}, Parts{{"one", 1.0f}, {"two", -0.5f}}}) {
      EXPECT_GT(model.divergence("source", parts, "source", {}), 1e-3);
      EXPECT_LT(model.divergence("source", parts, "folded", parts), 1e-7);
    }
    // Without the folds the same adapter is another one.
    const Parts parts = {{"one", 1.0f}}, own = {{"own", 1.0f}};
    const double as_it_is = model.divergence("source", parts, "folded", own);
    EXPECT_GT(as_it_is, 1e-4);
    std::filesystem::remove(model.path("folded") + kFoldsFile);
    EXPECT_EQ(model.divergence("source", parts, "folded", parts), as_it_is);
    EXPECT_EQ(model.divergence("source", own, "source", parts), 0);
  }
}

TEST(FoldedAdapters, TheQuantizedFolderHasItsFolds) {
  const FoldedModel model("qwen3_moe", "int8", "awq");
  const Parts parts = {{"one", 1.0f}};
  EXPECT_LT(model.divergence("source", parts, "out", parts),
            0.5 * model.divergence("source", parts, "out", {{"own", 1.0f}}));
  const std::string manifest =
      read_text_file(model.path("out/vitrine_manifest.json"), uint64_t{1} << 26);
  EXPECT_NE(manifest.find(sha256_of_file(model.path("out") + kFoldsFile)), std::string::npos);
}

TEST(FoldedAdapters, AreRefusedWhereNobodyKnowsTheFolds) {
  const FoldedModel model("llama", "int4", "awq");
  std::filesystem::remove(model.path("out") + kFoldsFile);
  const Error error = error_of([&] { model.load("out", {{"one", 1.0f}}); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(
      error, {"one/adapter_model.safetensors", "was folded in", "out", "vitrine_folds.tensors",
              "quantized anew", "vitrine_made_for_folded"}))
      << error.what();
  EXPECT_NE(model.load("out", {{"own", 1.0f}}), nullptr);
}

TEST(FoldedAdapters, AFileThatIsNoneIsRefused) {
  const FoldedModel model("llama", "int4", "awq");
  const std::string path = model.path("folded") + kFoldsFile;
  const auto refused = [&](const std::string& name, int64_t size,
                           std::initializer_list<std::string_view> words) {
    SafetensorsWriter writer(path);
    writer.declare(name, DType::kF32, {size});
    writer.begin();
    const std::vector<float> factors(static_cast<size_t>(size), 1.0f);
    writer.write(name, std::as_bytes(std::span(factors)));
    writer.finish();
    const Error error = error_of([&] { model.load("folded", {{"one", 1.0f}}); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
    EXPECT_NE(model.load("folded", {}), nullptr);  // nobody asks for the folds
  };
  refused("model.layers.0.self_attn.q_proj.weight", 4, {"vitrine_folds.tensors", "is no fold"});
  refused("model.layers.0.self_attn.q_proj.weight.columns", 3, {"3 factors", "expected"});
  write_text(path, "nothing");
  EXPECT_EQ(error_of([&] { model.load("folded", {{"one", 1.0f}}); }).kind(), ErrorKind::kBadFile);
}

}  // namespace
}  // namespace vitrine::testing

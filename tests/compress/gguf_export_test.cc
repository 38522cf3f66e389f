// SPDX-License-Identifier: Apache-2.0
// Models as GGUF files: what is written reads back as the folder it was made of; importance files.
#include "vitrine/gguf_export.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/engine/edited_model.h"
#include "vitrine/quant.h"

namespace vitrine::testing {
namespace {

/// Families whose files are written.
const std::vector<std::string> kWritten = {"llama",     "mixtral", "olmoe",
                                           "qwen2_moe", "qwen3",   "qwen3_moe"};

Rows rows_of(const std::string& path, const std::vector<int32_t>& ids) {
  EngineOptions options = test_options();
  options.kv_codecs = {"f32"};
  const auto engine = Engine::load(path, options);
  return score(*engine, ids);
}

TEST(GgufExport, ReadsBackAsTheFolderThatItWasMadeOf) {
  for (const std::string& oracle : kWritten) {
    SCOPED_TRACE(oracle);
    const std::string source = oracle_folder(oracle);
    const Checkpoint folder = Checkpoint::open(source);
    const DType dtype = folder.require("model.embed_tokens.weight").dtype;
    const TemporaryFolder out;
    GgufExportOptions options;
    options.type = dtype == DType::kBF16 ? "bf16" : dtype == DType::kF16 ? "f16" : "f32";
    const GgufExportReport report = export_gguf(source, out / "model.gguf", options);
    EXPECT_GT(report.tensors.size(), 10u);
    const std::vector<int32_t> ids = prompt_ids(33, 200);
    EXPECT_TRUE(same_bits(rows_of(source, ids), rows_of(out / "model.gguf", ids), ids.size()));
    const Error error = error_of([&] { export_gguf(source, out / "model.gguf", options); });
    EXPECT_TRUE(is_one_line_with(error, {"model.gguf", "exists", "expected a new file"}));
  }
}

TEST(GgufExport, RefusesFamiliesThatItDoesNotWriteByName) {
  for (const std::string& oracle : oracle_names()) {
    if (std::ranges::count(kWritten, oracle) > 0 || oracle == "qwen3_moe_sparse2") continue;
    SCOPED_TRACE(oracle);
    const TemporaryFolder out;
    std::string said;
    try {
      export_gguf(oracle_folder(oracle), out / "model.gguf", {});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << error.what();
      said = error.what();
    }
    // Those that are plain decoders under another name are written, too.
    if (said.empty()) {
      ADD_FAILURE() << "it is written; expected it in the list above";
      continue;
    }
    EXPECT_NE(said.find("expected"), std::string::npos) << said;
    EXPECT_FALSE(std::filesystem::exists(out / "model.gguf"));
  }
  const TemporaryFolder out;
  const Error error =
      error_of([&] { export_gguf(oracle_folder("llama"), out / "a.gguf", {.type = "q9_x"}); });
  EXPECT_TRUE(is_one_line_with(error, {"q9_x", "expected one of: bf16"}));
  EXPECT_TRUE(is_one_line_with(error_of([&] { export_gguf(shipped_model(), out / "a.gguf", {}); }),
                               {"quantization_config", "quantized already", "expected a float"}));
}

std::vector<float> random_values(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

/// A llama of 512 columns, since blocks of 256 divide nothing in the oracles.
EditedModel wide_model() {
  const auto edit_config = [](nlohmann::json& config) {
    config.update({{"hidden_size", 256},
                   {"intermediate_size", 512},
                   {"num_attention_heads", 4},
                   {"num_key_value_heads", 2},
                   {"head_dim", 64},
                   {"num_hidden_layers", 4},
                   {"tie_word_embeddings", false}});
  };
  return EditedModel("llama", edit_config, [](EditedModel::Tensors& tensors) {
    EditedModel::Tensors made;
    unsigned seed = 1;
    const auto put = [&](const std::string& name, std::vector<int64_t> shape) {
      int64_t count = 1;
      for (const int64_t extent : shape) count *= extent;
      const std::vector<float> values = random_values(static_cast<size_t>(count), seed++);
      const auto bytes = std::as_bytes(std::span(values));
      made[name] = {DType::kF32, std::move(shape), {bytes.begin(), bytes.end()}};
    };
    const int64_t vocab = tensors.at("model.embed_tokens.weight").shape[0];
    put("model.embed_tokens.weight", {vocab, 256});
    put("model.norm.weight", {256});
    put("lm_head.weight", {vocab, 256});
    for (int layer = 0; layer < 4; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      put(prefix + "input_layernorm.weight", {256});
      put(prefix + "post_attention_layernorm.weight", {256});
      put(prefix + "self_attn.q_proj.weight", {256, 256});
      put(prefix + "self_attn.k_proj.weight", {128, 256});
      put(prefix + "self_attn.v_proj.weight", {128, 256});
      put(prefix + "self_attn.o_proj.weight", {256, 256});
      put(prefix + "mlp.gate_proj.weight", {512, 256});
      put(prefix + "mlp.up_proj.weight", {512, 256});
      put(prefix + "mlp.down_proj.weight", {256, 512});
    }
    tensors = std::move(made);
  });
}

/// The sum of squared errors of a matrix, each column's times its weight.
double weighted_error(const Checkpoint& source, const Checkpoint& file, const std::string& tensor,
                      const std::vector<float>& weights) {
  const std::vector<float> first = source.read_f32(tensor), second = file.read_f32(tensor);
  double sum = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    const double off = static_cast<double>(first[i]) - second[i];
    sum += off * off * (weights.empty() ? 1.0 : weights[i % weights.size()]);
  }
  return sum;
}

TEST(GgufExport, BlocksLoseWhatTheirBitsAllow) {
  const EditedModel model = wide_model();
  const Checkpoint source = Checkpoint::open(model.path());
  const std::string tensor = "model.layers.1.mlp.up_proj.weight";
  double plain = 0;
  for (const float value : source.read_f32(tensor)) plain += static_cast<double>(value) * value;
  // Signal to noise doubles twice with each bit; normal numbers lose more than uniform ones.
  // Blocks by themselves are held to llama.cpp's in tests/quant.
  for (const auto& [type, most] : {std::pair{"q2_k", 0.1},
                                   {"q3_k", 0.025},
                                   {"iq4_xs", 0.006},
                                   {"q5_1", 0.0015},
                                   {"q6_k", 0.0006},
                                   {"q8_0", 0.00004}}) {
    SCOPED_TRACE(type);
    const TemporaryFolder out;
    export_gguf(model.path(), out / "a.gguf", {.type = type, .pure = true});
    const double error =
        weighted_error(source, Checkpoint::open(out / "a.gguf"), tensor, {}) / plain;
    EXPECT_LT(error, most);
  }
}

std::map<std::string, std::string> types_of(const std::string& model,
                                            const GgufExportOptions& options) {
  const TemporaryFolder out;
  std::map<std::string, std::string> types;
  for (const GgufTensorReport& tensor : export_gguf(model, out / "a.gguf", options).tensors) {
    types[tensor.name] = tensor.type;
  }
  return types;
}

TEST(GgufExport, MixturesSpendMoreWhereLlamaQuantizeDoes) {
  const EditedModel model = wide_model();
  auto types = types_of(model.path(), {.type = "q4_k_m"});
  EXPECT_EQ(types.at("output.weight"), "q6_k");
  EXPECT_EQ(types.at("token_embd.weight"), "q4_k");
  EXPECT_EQ(types.at("output_norm.weight"), "f32");
  EXPECT_EQ(types.at("blk.0.attn_q.weight"), "q4_k");
  // The third of four layers has more by the rule of thirds, and the last by that of eighths.
  EXPECT_EQ(types.at("blk.0.ffn_down.weight"), "q4_k");
  EXPECT_EQ(types.at("blk.2.ffn_down.weight"), "q6_k");
  EXPECT_EQ(types.at("blk.3.attn_v.weight"), "q6_k");
  EXPECT_EQ(types.at("blk.3.ffn_up.weight"), "q4_k");
  types = types_of(model.path(), {.type = "q3_k_m"});
  EXPECT_EQ(types.at("blk.1.attn_v.weight"), "q5_k");
  EXPECT_EQ(types.at("blk.2.attn_v.weight"), "q4_k");
  EXPECT_EQ(types.at("blk.0.ffn_down.weight"), "q4_k");
  EXPECT_EQ(types.at("blk.0.attn_output.weight"), "q4_k");
  EXPECT_EQ(types.at("blk.0.attn_k.weight"), "q3_k");
  types = types_of(model.path(), {.type = "q2_k"});
  EXPECT_EQ(types.at("blk.3.attn_v.weight"), "q3_k");  // two heads share a key, not four
  EXPECT_EQ(types.at("blk.3.ffn_down.weight"), "q3_k");
  EXPECT_EQ(types.at("output.weight"), "q6_k");
  types = types_of(model.path(), {.type = "q2_k", .pure = true});
  EXPECT_EQ(types.at("output.weight"), "q2_k");
  EXPECT_EQ(types.at("blk.3.attn_v.weight"), "q2_k");
  types = types_of(model.path(), {.type = "iq3_m"});
  EXPECT_EQ(types.at("blk.1.attn_output.weight"), "q4_k");
  EXPECT_EQ(types.at("blk.1.ffn_gate.weight"), "iq3_s");
}

TEST(GgufExport, FewBitsNeedImportances) {
  const EditedModel model = wide_model();
  ImportanceMatrix matrix;
  for (int layer = 0; layer < 4; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up"}) {
      matrix.entries[prefix + name + ".weight"] = {std::vector<float>(256, 1.0F), {3}};
    }
    matrix.entries[prefix + "ffn_down.weight"] = {std::vector<float>(512, 1.0F), {3}};
  }
  const Checkpoint source = Checkpoint::open(model.path());
  const std::string tensor = "model.layers.1.mlp.up_proj.weight";
  double plain = 0, before = 1;
  for (const float value : source.read_f32(tensor)) plain += static_cast<double>(value) * value;
  for (const auto& [type, most] : {std::pair{"iq2_xxs", 0.22}, {"iq3_xxs", 0.08}}) {
    SCOPED_TRACE(type);
    const TemporaryFolder out;
    const Error error =
        error_of([&] { export_gguf(model.path(), out / "a.gguf", {.type = type}); });
    EXPECT_TRUE(is_one_line_with(
        error, {"'blk.", "without importances", "expected an importance matrix", "--imatrix"}));
    EXPECT_TRUE(std::filesystem::is_empty(out / ""));
    GgufExportOptions options{.type = type};
    options.importance = &matrix;
    export_gguf(model.path(), out / "a.gguf", options);
    const double lost =
        weighted_error(source, Checkpoint::open(out / "a.gguf"), tensor, {}) / plain;
    EXPECT_LT(lost, most);
    EXPECT_LT(lost, before);
    before = lost;
  }
}

TEST(GgufExport, ImportanceMovesTheErrorToWhereItCountsLess) {
  const EditedModel model = wide_model();
  const Checkpoint source = Checkpoint::open(model.path());
  const std::string tensor = "model.layers.0.mlp.up_proj.weight", name = "blk.0.ffn_up.weight";
  ImportanceMatrix matrix;
  std::vector<float> weights(256, 0.01F);
  for (size_t i = 0; i < 256; i += 8) weights[i] = 10;
  matrix.entries[name] = {weights, {5}};
  matrix.entries["blk.9.ffn_up.weight"] = {weights, {5}};
  matrix.entries["blk.1.ffn_up.weight"] = {weights, {0}};
  for (const char* type : {"q4_0", "q5_1", "q2_k", "q3_k", "q4_k", "q6_k", "iq3_s", "iq4_xs"}) {
    SCOPED_TRACE(type);
    const TemporaryFolder out;
    export_gguf(model.path(), out / "a.gguf", {.type = type});
    GgufExportOptions options{.type = type};
    options.importance = &matrix;
    const GgufExportReport report = export_gguf(model.path(), out / "b.gguf", options);
    EXPECT_EQ(report.unused, std::vector<std::string>{"blk.9.ffn_up.weight"});
    EXPECT_EQ(report.unreached, std::vector<std::string>{"blk.1.ffn_up.weight[0]"});
    EXPECT_LT(weighted_error(source, Checkpoint::open(out / "b.gguf"), tensor, weights),
              0.9 * weighted_error(source, Checkpoint::open(out / "a.gguf"), tensor, weights));
    options.threads = 1;
    export_gguf(model.path(), out / "c.gguf", options);
    EXPECT_EQ(sha256_of_file(out / "b.gguf"), sha256_of_file(out / "c.gguf"));
  }
  matrix.entries[name].mean_squares.pop_back();
  GgufExportOptions options{.type = "q4_k"};
  options.importance = &matrix;
  const TemporaryFolder out;
  const Error error = error_of([&] { export_gguf(model.path(), out / "a.gguf", options); });
  EXPECT_TRUE(is_one_line_with(error, {name, "255", "expected those of this model, 256"}));
  EXPECT_TRUE(std::filesystem::is_empty(out / ""));
}

TEST(GgufExport, MeasuresWhatMatricesAreMultipliedWith) {
  const std::string source = oracle_folder("qwen3_moe");
  const std::vector<std::vector<int32_t>> texts = {prompt_ids(20, 200, 1), prompt_ids(17, 200, 2)};
  const ImportanceMatrix matrix = measure_importance(source, texts, 2);
  const auto& query = matrix.entries.at("blk.0.attn_q.weight");
  EXPECT_EQ(query.counts, std::vector<int64_t>{37});
  EXPECT_EQ(query.mean_squares, matrix.entries.at("blk.0.attn_v.weight").mean_squares);
  const auto& downs = matrix.entries.at("blk.0.ffn_down_exps.weight");
  int64_t rows = 0;
  for (const int64_t count : downs.counts) rows += count;
  EXPECT_EQ(rows % 37, 0);  // as many experts a token
  EXPECT_EQ(downs.mean_squares.size() % downs.counts.size(), 0u);
  const TemporaryFolder folder;
  const std::string path = folder / "a.imatrix";
  write_importance_matrix(path, matrix, "texts", 2, 20);
  const ImportanceMatrix found = read_importance_matrix(path);
  ASSERT_EQ(found.entries.size(), matrix.entries.size());
  for (const auto& [name, entry] : matrix.entries) {
    const auto& other = found.entries.at(name);
    EXPECT_EQ(other.counts, entry.counts) << name;
    for (size_t i = 0; i < entry.mean_squares.size(); ++i) {
      EXPECT_NEAR(other.mean_squares[i], entry.mean_squares[i], 1e-6F * entry.mean_squares[i]);
    }
  }
  // A damaged file is refused with one line, or, where a value was hit, read.
  const std::string whole = read_bytes(path);
  for (size_t size = 0; size < whole.size(); size += 97) {
    write_bytes(path, whole.substr(0, size));
    const Error error = error_of([&] { read_importance_matrix(path); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << size << ": " << error.what();
  }
}

TEST(GgufExport, WritesOlderImportanceFiles) {
  ImportanceMatrix matrix;
  matrix.entries["blk.0.attn_q.weight"] = {{0.5F, 2, 0}, {64}};
  // The second of three experts has no rows; a tensor without any is left out.
  matrix.entries["blk.0.ffn_up_exps.weight"] = {{1, 3, 7, 7, 0.25F, 8}, {33, 0, 5}};
  matrix.entries["blk.1.ffn_up_exps.weight"] = {{1, 3}, {0, 0}};
  const TemporaryFolder folder;
  const std::string path = folder / "a.dat";
  write_importance_matrix(path, matrix, "texts", 2, 32);
  const ImportanceMatrix found = read_importance_matrix(path);
  ASSERT_EQ(found.entries.size(), 2u);
  const auto& query = found.entries.at("blk.0.attn_q.weight");
  EXPECT_EQ(query.mean_squares, (std::vector<float>{0.5F, 2, 0}));
  EXPECT_EQ(query.counts, std::vector<int64_t>{2});  // calls, which are whole texts
  EXPECT_EQ(found.entries.at("blk.0.ffn_up_exps.weight").mean_squares,
            (std::vector<float>{1, 3, 1, 1, 0.25F, 8}));
  // Behind the entries stand the number of texts and their name.
  const std::string bytes = read_bytes(path);
  EXPECT_TRUE(bytes.ends_with(std::string("\2\0\0\0\5\0\0\0texts", 13)));
}

TEST(GgufExport, ReadsOlderImportanceFiles) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.dat";
  std::string bytes;
  const auto put = [&](auto value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  put(int32_t{1});
  put(int32_t{4});
  bytes += "blk0";
  put(int32_t{2});
  put(int32_t{3});
  for (const float value : {2.0F, 4.0F, 0.0F}) put(value);
  write_bytes(path, bytes);
  const ImportanceMatrix matrix = read_importance_matrix(path);
  EXPECT_EQ(matrix.entries.at("blk0").mean_squares, (std::vector<float>{1, 2, 0}));
  EXPECT_EQ(matrix.entries.at("blk0").counts, std::vector<int64_t>{2});
  for (size_t size = 0; size < bytes.size(); ++size) {
    write_bytes(path, bytes.substr(0, size));
    EXPECT_EQ(error_of([&] { read_importance_matrix(path); }).kind(), ErrorKind::kBadFile) << size;
  }
  std::string negative = bytes;
  negative[negative.size() - 5] = static_cast<char>(0xC0);  // the sign of 4.0
  write_bytes(path, negative);
  EXPECT_TRUE(is_one_line_with(error_of([&] { read_importance_matrix(path); }),
                               {"a.dat", "blk0", "expected numbers of 0 or more"}));
}

}  // namespace
}  // namespace vitrine::testing

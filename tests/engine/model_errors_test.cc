// SPDX-License-Identifier: Apache-2.0
// What Model::open makes of options, and what it refuses, each with one line that says what to do.
#include <sys/stat.h>

#include "tests/engine/model_fixture.h"

namespace vitrine::testing {
namespace {

namespace fs = std::filesystem;

TEST(ModelOptionsTest, TheContextIsTheModelsUpToALimit) {
  LinkedModel folder({"config.json"});
  std::string config = read_bytes(shipped_model() + "/config.json");
  const int64_t own = read_model_facts(Checkpoint::open(shipped_model())).max_position_embeddings;
  const std::string field = "\"max_position_embeddings\": ";
  const size_t at = config.find(field) + field.size();
  config.replace(at, std::to_string(own).size(), "1000000");
  folder.write("config.json", config);
  ASSERT_LE(own, ModelOptions::kDefaultContext);
  const ModelOptions options = {.engine = {.audit_mode = AuditMode::kNone}};
  EXPECT_EQ(Model::open(shipped_model(), options).options().max_context, own);
  EXPECT_EQ(Model::open(shipped_federation(), options).options().max_context, own);
  EXPECT_EQ(Model::open(folder.path(), options).options().max_context,
            ModelOptions::kDefaultContext);
  ModelOptions wider = options;
  wider.engine.max_context = 5000;
  EXPECT_EQ(Model::open(folder.path(), wider).options().max_context, 5000);
}

TEST(ModelOptionsTest, MixesThatDoNotGoTogether) {
  const auto refused = [](const std::string& path, ErrorKind kind,
                          std::initializer_list<std::string_view> words, const auto& change) {
    ModelOptions options = small_options();
    change(options.engine);
    const Error error = error_of([&] { Model::open(path, options); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
  };
  const std::string adapter = fs::path(shipped_federation()).parent_path() / "science";
  refused(shipped_federation(), ErrorKind::kInvalidArgument, {"adapters", "federation"},
          [&](EngineOptions& o) { o.adapters = {adapter}; });
  refused(shipped_federation(), ErrorKind::kUnsupported, {"attribution", "fused"},
          [](EngineOptions& o) {
            o.attribution = true;
            o.kernels = KernelPath::kReference;
          });
  for (const std::string& path : {shipped_model(), shipped_federation()}) {
    refused(path, ErrorKind::kInvalidArgument, {"mmap_weights", "expert_cache_bytes"},
            [](EngineOptions& o) {
              o.mmap_weights = true;
              o.expert_cache_bytes = 1 << 20;
            });
    refused(path, ErrorKind::kUnsupported, {"mmap_weights", "fused"}, [](EngineOptions& o) {
      o.mmap_weights = true;
      o.kernels = KernelPath::kReference;
    });
    refused(path, ErrorKind::kInvalidArgument, {"max_context"},
            [](EngineOptions& o) { o.max_context = 1 << 20; });
    refused(path, ErrorKind::kInvalidArgument, {"max_context"},
            [](EngineOptions& o) { o.max_context = -1; });
    refused(path, ErrorKind::kUnsupported, {"mps", "no fused kernels"}, [](EngineOptions& o) {
      o.device = Device::parse("mps");
      o.kernels = KernelPath::kFused;
    });
  }
  // An adapter is for one engine.
  ModelOptions options = small_options();
  options.engine.adapters = {adapter};
  Model model = Model::open(shipped_model(), options);
  EXPECT_NO_THROW(model.create_sequence(0));
}

// ---- Files that are no model --------------------------------------------------------------------

class NoModel : public ::testing::Test {
 protected:
  void refuse(const std::string& path, ErrorKind kind,
              std::initializer_list<std::string_view> words) {
    const Error error = error_of([&] { Model::open(path, small_options()); });
    EXPECT_EQ(error.kind(), kind) << path << ": " << error.what();
    EXPECT_TRUE(error.is_user_error()) << error.what();
    EXPECT_TRUE(is_one_line_with(error, words)) << path << ": " << error.what();
  }
  std::string file(const std::string& name, const std::string& bytes) {
    write_bytes(folder_ / name, bytes);
    return folder_ / name;
  }
  TemporaryFolder folder_;
};

TEST_F(NoModel, NothingIsThere) {
  for (const char* path : {"/nope", "/nope.gguf", "/nope.json", "nope/model"}) {
    refuse(path, ErrorKind::kInvalidArgument, {path, "is not there", "expected"});
  }
  refuse("", ErrorKind::kInvalidArgument, {"expected"});
  const LinkedModel gone({"model.safetensors"});
  refuse(gone.path(), ErrorKind::kBadFile, {gone.path(), "model.safetensors"});
}

TEST_F(NoModel, AJsonThatIsNoFederation) {
  refuse(shipped_model() + "/config.json", ErrorKind::kBadFile,
         {"config.json", "no field 'federation'", "model's folder"});
  refuse(file("list.json", "[1, 2]"), ErrorKind::kBadFile, {"list.json"});
  refuse(file("empty.json", ""), ErrorKind::kBadFile, {"empty.json"});
  refuse(file("object", " \n{}"), ErrorKind::kBadFile, {"object", "no field 'federation'"});
  refuse(file("brackets.json", std::string(100000, '[')), ErrorKind::kBadFile, {"brackets.json"});
  refuse(file("objects", std::string(100000, '{')), ErrorKind::kBadFile, {"objects"});
  refuse(file("version.json", R"({"federation": 2})"), ErrorKind::kBadFile, {"'federation'", "2"});
  refuse(file("alone.json", R"({"federation": 1, "specialists": []})"), ErrorKind::kBadFile,
         {"specialists"});
  const std::string whole = read_bytes(shipped_federation());
  for (size_t length = 0; length + 2 < whole.size(); length += 7) {
    refuse(file("cut.json", whole.substr(0, length)), ErrorKind::kBadFile, {"cut.json"});
  }
}

TEST_F(NoModel, AFederationWhoseMembersAreNotThere) {
  const std::string members =
      R"("specialists": [{"name": "a", "model": "gone"}, {"name": "b", "model": "gone-too"}],)";
  const std::string combiner = R"("combiner": {"kind": "mixture", "weights": [0.5, 0.5]}})";
  refuse(file("gone.json", R"({"federation": 1, )" + members + combiner), ErrorKind::kBadFile,
         {"gone"});
  // A file that names itself is read once.
  refuse(file("self.json", R"({"federation": 1, "specialists": [{"name": "a", "model": "self.json"},
      {"name": "b", "model": "self.json"}], )" +
                               combiner),
         ErrorKind::kBadFile, {"self.json"});
}

TEST_F(NoModel, AFolderThatLacksParts) {
  refuse(folder_.path(), ErrorKind::kBadFile, {folder_.path(), "config.json"});
  const LinkedModel no_config({"config.json"});
  refuse(no_config.path(), ErrorKind::kBadFile, {no_config.path(), "config.json"});
  const LinkedModel no_tokenizer({"tokenizer.json"});
  refuse(no_tokenizer.path(), ErrorKind::kBadFile, {no_tokenizer.path(), "tokenizer.json"});
  LinkedModel cut_tokenizer({"tokenizer.json"});
  const std::string tokenizer = read_bytes(shipped_model() + "/tokenizer.json");
  cut_tokenizer.write("tokenizer.json", tokenizer.substr(0, tokenizer.size() / 2));
  refuse(cut_tokenizer.path(), ErrorKind::kBadFile, {"tokenizer.json"});
  LinkedModel other_tokenizer({"tokenizer.json"});
  other_tokenizer.write("tokenizer.json", R"({"model": 3})");
  refuse(other_tokenizer.path(), ErrorKind::kBadFile, {"tokenizer.json"});
}

TEST_F(NoModel, ATokenizerOfALargerModel) {
  fs::copy(oracle_folder("qwen3_moe"), folder_.path(), fs::copy_options::recursive);
  fs::copy_file(shipped_model() + "/tokenizer.json", folder_ / "tokenizer.json",
                fs::copy_options::overwrite_existing);
  refuse(folder_.path(), ErrorKind::kBadFile, {"tokenizer.json", "256 rows"});
}

TEST_F(NoModel, AGgufFileCutShort) {
  const std::string whole = read_bytes(gguf_file());
  ASSERT_GT(whole.size(), 1000U);
  std::vector<size_t> lengths = {0, 1, 3, 4, 7, 8, 16, 23, 24};
  for (size_t part = 1; part < 24; ++part) lengths.push_back(whole.size() * part / 24);
  lengths.push_back(whole.size() - 1);
  for (const size_t length : lengths) {
    refuse(file("cut.gguf", whole.substr(0, length)), ErrorKind::kBadFile, {"cut.gguf"});
  }
  // By its content, whatever it is called; the name .json asks for a federation.
  EXPECT_NO_THROW(Model::open(file("whole", whole), small_options()));
  refuse(file("whole.json", whole), ErrorKind::kBadFile, {"whole.json"});
}

TEST_F(NoModel, FilesOfOtherKinds) {
  refuse(file("text.txt", "hello"), ErrorKind::kBadFile, {"text.txt"});
  refuse(shipped_model() + "/model.safetensors", ErrorKind::kBadFile, {"model.safetensors"});
  ASSERT_EQ(::mkfifo((folder_ / "pipe.json").c_str(), 0600), 0);  // would wait for a writer
  refuse(folder_ / "pipe.json", ErrorKind::kBadFile, {"pipe.json", "regular file"});
  refuse("/dev/null", ErrorKind::kBadFile, {"/dev/null", "regular file"});
  fs::create_directory(folder_ / "folder.json");
  refuse(folder_ / "folder.json", ErrorKind::kBadFile, {"folder.json"});
  fs::create_symlink("loop", folder_ / "loop");
  const Error loop = error_of([&] { Model::open(folder_ / "loop", small_options()); });
  EXPECT_TRUE(is_one_line_with(loop, {"loop"})) << loop.what();
}

}  // namespace
}  // namespace vitrine::testing

// SPDX-License-Identifier: Apache-2.0
// llama.cpp's logits, or ik_llama.cpp's, through the C API of both: compare_kl.py compares them
// with a float reference's.
//
//     llama_logits MODEL THREADS OUT < IDS      OUT: float32, a row of logits for each id
#include <llama.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr size_t kStep = 512;  // tokens of a batch, whose logits are held

void write_logits(const char* path, int threads, const char* out) {
  std::vector<llama_token> ids;
  for (llama_token id = 0; std::cin >> id;) ids.push_back(id);
  if (ids.empty()) throw std::runtime_error("no ids on standard input");
  llama_model* model = llama_model_load_from_file(path, llama_model_default_params());
  if (model == nullptr) throw std::runtime_error(std::string(path) + " could not be loaded");
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(ids.size());
  params.n_batch = params.n_ubatch = static_cast<uint32_t>(std::min(ids.size(), kStep));
  params.n_threads = params.n_threads_batch = static_cast<decltype(params.n_threads)>(threads);
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) throw std::runtime_error("no context could be made");
  llama_batch batch = llama_batch_init(static_cast<int32_t>(params.n_batch), 0, 1);
  std::FILE* file = std::fopen(out, "wb");
  bool is_written = file != nullptr;
  for (size_t first = 0; is_written && first < ids.size(); first += kStep) {
    const size_t count = std::min(ids.size() - first, kStep);
    for (size_t i = 0; i < count; ++i) {
      batch.token[i] = ids[first + i];
      batch.pos[i] = static_cast<llama_pos>(first + i);
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;
    }
    batch.n_tokens = static_cast<int32_t>(count);
    if (llama_decode(context, batch) != 0) throw std::runtime_error("llama_decode failed");
    const size_t numbers = count * static_cast<size_t>(vocabulary);
    is_written = std::fwrite(llama_get_logits(context), 4, numbers, file) == numbers;
  }
  if (file == nullptr || std::fclose(file) != 0 || !is_written) {
    throw std::runtime_error(std::string(out) + " could not be written");
  }
}  // the process ends: what it has made goes with it

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("llama_logits: expected MODEL THREADS OUT and ids on standard input\n", stderr);
    return 2;
  }
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  try {
    write_logits(argv[1], std::atoi(argv[2]), argv[3]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "llama_logits: %s\n", error.what());
    return 1;
  }
}

// SPDX-License-Identifier: Apache-2.0
// A host application: open a model (Hugging Face folder, GGUF file or federation file), answer with
// a callback per token, read the account of every token as structs.
#include <vitrine/model.h>
#include <algorithm>
#include <cmath>
#include <cstdio>

int main(int argc, char** argv) try {
  if (argc != 3) return std::fprintf(stderr, "usage: embed MODEL PROMPT\n"), 2;
  vitrine::SlabRing ring(1 << 20, vitrine::SlabRing::WhenFull::kOverwrite);
  vitrine::Model model = vitrine::Model::open(argv[1]);
  model.set_audit_sink(&ring);

  // A model that was trained on conversations answers a message, another continues the text.
  const std::vector<int32_t> prompt = model.chat_template() != nullptr
                                          ? model.encode_chat({{{"user", argv[2]}}})
                                          : model.tokenizer().encode(argv[2]);
  vitrine::GenerateOptions options;
  options.max_new_tokens = 40;
  options.sampler = {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .seed = 7};
  options.stop_token_ids = model.end_of_turn_ids();
  vitrine::StreamDecoder decoder(model.tokenizer());
  vitrine::generate(model, prompt, options, [&](const vitrine::TokenEvent& event) {
    std::printf("%s", decoder.add(event.token).c_str());
    return std::fflush(stdout) == 0;  // false cancels
  });
  std::printf("%s\n\n", decoder.finish().c_str());

  for (const vitrine::TokenRecord& record : ring.drain_records()) {
    if (!record.has_prediction) continue;
    std::string text = model.tokenizer().token_bytes(record.prediction.token);
    std::replace(text.begin(), text.end(), '\n', ' ');
    std::printf("%-12s p = %.3f  experts", text.c_str(), std::exp(record.prediction.logprob));
    for (const vitrine::LayerRecord& layer : record.layers) {
      if (!layer.routes.empty()) std::printf(" %d", layer.routes.front().expert);
    }
    std::printf("\n");
  }
} catch (const vitrine::Error& error) {
  return std::fprintf(stderr, "embed: %s\n", error.what()), error.is_user_error() ? 2 : 1;
}

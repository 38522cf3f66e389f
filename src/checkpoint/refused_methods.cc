// SPDX-License-Identifier: Apache-2.0
// Methods of quantization that are refused by name, with what turns such a folder into one that
// loads.
#include "gptq_config.h"

namespace vitrine::checkpoint {
namespace {

std::unique_ptr<const QuantizationConfig> refuse_marlin(const Fields& fields) {
  refuse_format(fields, "quant_method", "is stored in the order of one GPU kernel",
                kWriteGptqAgain);
}
const QuantMethodFile kMarlinMethod("marlin", &refuse_marlin);

std::unique_ptr<const QuantizationConfig> refuse_exl3(const Fields& fields) {
  refuse_format(fields, "quant_method",
                "keeps weights as a trellis that its own CUDA kernels decode (EXL3)",
                "the float model it was made of, and `vitrine quantize`, or a GGUF file of it");
}
const QuantMethodFile kExl3Method("exl3", &refuse_exl3);

std::unique_ptr<const QuantizationConfig> refuse_for_transformers(const Fields& fields) {
  refuse_format(fields, "quant_method", "no reader here knows",
                "the model without it: AutoModelForCausalLM.from_pretrained(FOLDER).dequantize()"
                ".save_pretrained(OTHER), then `vitrine quantize OTHER`");
}
const QuantMethodFile kBitsAndBytesMethod("bitsandbytes", &refuse_for_transformers);
const QuantMethodFile kHqqMethod("hqq", &refuse_for_transformers);

std::unique_ptr<const QuantizationConfig> refuse_torchao(const Fields& fields) {
  refuse_format(fields, "quant_method",
                "pickles tensors of a Python class, which nothing else reads",
                "the float model it was made of, and `vitrine quantize`, or the same settings by "
                "llm-compressor");
}
const QuantMethodFile kTorchaoMethod("torchao", &refuse_torchao);

}  // namespace
}  // namespace vitrine::checkpoint

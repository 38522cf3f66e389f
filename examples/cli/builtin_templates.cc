// SPDX-License-Identifier: Apache-2.0
#include "builtin_templates.h"

#include <algorithm>

namespace cli {

namespace {

/// A template that writes each message by its role. "@" stands for the role, "%" for the content.
struct RoleTemplate {
  std::string_view name;
  bool has_bos;  // the beginning token stands before the first message
  bool trims;    // white space around a content is left out
  std::string_view system, user, assistant, opening;
};

constexpr std::string_view kChatml = "<|im_start|>@\n%<|im_end|>\n";
constexpr std::string_view kPhi3 = "<|@|>\n%<|end|>\n",
                           kPhi4 = "<|im_start|>@<|im_sep|>%<|im_end|>";
constexpr std::string_view kFalcon3 = "<|@|>\n%\n", kZephyr = "<|@|>\n%<|endoftext|>\n";
constexpr std::string_view kLlama3 = "<|start_header_id|>@<|end_header_id|>\n\n%<|eot_id|>";
constexpr std::string_view kLlama4 = "<|header_start|>@<|header_end|>\n\n%<|eot|>";
constexpr std::string_view kGranite = "<|start_of_role|>@<|end_of_role|>%<|end_of_text|>\n";
constexpr std::string_view kMegrez = "<|role_start|>@<|role_end|>%<|turn_end|>";
constexpr std::string_view kGlm = "<|@|>\n%", kSolar = "<|begin|>@<|content|>%<|end|>";

constexpr RoleTemplate kRoleTemplates[] = {
    {"chatglm4", false, false, kGlm, kGlm, kGlm, "<|assistant|>\n"},
    {"chatml", false, false, kChatml, kChatml, kChatml, "<|im_start|>assistant\n"},
    {"command-r", true, true, "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>%<|END_OF_TURN_TOKEN|>",
     "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>%<|END_OF_TURN_TOKEN|>",
     "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>%<|END_OF_TURN_TOKEN|>",
     "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"},
    {"deepseek", true, false, "%", "### Instruction:\n%\n", "### Response:\n%\n<|EOT|>\n",
     "### Response:\n"},
    {"deepseek2", true, false, "%\n\n", "User: %\n\n", "Assistant: %<｜end▁of▁sentence｜>",
     "Assistant:"},
    {"deepseek3", true, false, "%\n\n", "<｜User｜>%", "<｜Assistant｜>%<｜end▁of▁sentence｜>",
     "<｜Assistant｜>"},
    {"exaone3", false, true, "[|system|]%[|endofturn|]\n", "[|user|]%\n",
     "[|assistant|]%[|endofturn|]\n", "[|assistant|]"},
    {"exaone4", false, true, "[|system|]%[|endofturn|]\n", "[|user|]%\n",
     "[|assistant|]%[|endofturn|]\n", "[|assistant|]"},
    {"falcon3", false, false, kFalcon3, kFalcon3, kFalcon3, "<|assistant|>\n"},
    {"glmedge", false, false, kGlm, kGlm, kGlm, "<|assistant|>"},
    {"gpt-oss", false, false, "<|start|>system<|message|>%<|end|>",
     "<|start|>user<|message|>%<|end|>", "<|start|>assistant<|message|>%<|return|>",
     "<|start|>assistant"},
    {"granite", false, false, kGranite, kGranite, kGranite,
     "<|start_of_role|>assistant<|end_of_role|>"},
    {"granite-4.0", false, false, kGranite, kGranite, kGranite,
     "<|start_of_role|>assistant<|end_of_role|>"},
    {"kimi-k2", false, false, "<|im_system|>system<|im_middle|>%<|im_end|>",
     "<|im_user|>user<|im_middle|>%<|im_end|>", "<|im_assistant|>assistant<|im_middle|>%<|im_end|>",
     "<|im_assistant|>assistant<|im_middle|>"},
    {"llama3", true, true, kLlama3, kLlama3, kLlama3,
     "<|start_header_id|>assistant<|end_header_id|>\n\n"},
    {"llama4", true, true, kLlama4, kLlama4, kLlama4,
     "<|header_start|>assistant<|header_end|>\n\n"},
    {"megrez", false, false, kMegrez, kMegrez, kMegrez, "<|role_start|>assistant<|role_end|>"},
    {"minicpm", true, true, "%", "<用户>%<AI>", "%", ""},
    {"mistral-v7", true, false, "[SYSTEM_PROMPT] %[/SYSTEM_PROMPT]", "[INST] %[/INST]", " %</s>",
     ""},
    {"mistral-v7-tekken", true, false, "[SYSTEM_PROMPT]%[/SYSTEM_PROMPT]", "[INST]%[/INST]",
     "%</s>", ""},
    {"openchat", true, false, "%<|end_of_turn|>", "GPT4 Correct User: %<|end_of_turn|>",
     "GPT4 Correct Assistant: %<|end_of_turn|>", "GPT4 Correct Assistant:"},
    {"phi3", false, false, kPhi3, kPhi3, kPhi3, "<|assistant|>\n"},
    {"phi4", false, false, kPhi4, kPhi4, kPhi4, "<|im_start|>assistant<|im_sep|>"},
    {"solar-open", false, false, kSolar, kSolar, kSolar, "<|begin|>assistant"},
    {"vicuna", true, false, "%\n\n", "USER: %\n", "ASSISTANT: %</s>\n", "ASSISTANT:"},
    {"vicuna-orca", true, false, "SYSTEM: %\n", "USER: %\n", "ASSISTANT: %</s>\n", "ASSISTANT:"},
    {"zephyr", false, false, kZephyr, kZephyr, kZephyr, "<|assistant|>\n"},
};

/// Templates that look at more than one message.
struct OwnTemplate {
  std::string_view name, source;
};

constexpr OwnTemplate kOwnTemplates[] = {
    // A system message goes into the next one of the user's.
    {"gemma",
     "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
     "{% if m.role == 'system' %}{% set ns.system = ns.system + m.content | trim %}{% else %}"
     "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
     "{% if ns.system and m.role != 'assistant' %}{{ ns.system + '\\n\\n' }}"
     "{% set ns.system = '' %}{% endif %}{{ m.content | trim }}<end_of_turn>\n"
     "{% endif %}{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"},
    {"llama2",
     "{{ bos_token }}[INST] {% for m in messages %}"
     "{% if not loop.first and messages[loop.index0 - 1].role == 'assistant' %}[INST] {% endif %}"
     "{% if m.role == 'system' %}{{ m.content }}\n"
     "{% elif m.role == 'user' %}{{ m.content }} [/INST]{% else %}{{ m.content }}</s>{% endif %}"
     "{% endfor %}"},
    {"llama2-sys",
     "{{ bos_token }}[INST] {% for m in messages %}"
     "{% if not loop.first and messages[loop.index0 - 1].role == 'assistant' %}[INST] {% endif %}"
     "{% if m.role == 'system' %}<<SYS>>\n{{ m.content }}\n<</SYS>>\n\n"
     "{% elif m.role == 'user' %}{{ m.content }} [/INST]{% else %}{{ m.content }}</s>{% endif %}"
     "{% endfor %}"},
    {"mistral-v1",
     "{{ bos_token }}{% for m in messages %}"
     "{% if loop.first or messages[loop.index0 - 1].role == 'assistant' %} [INST] {% endif %}"
     "{% if m.role == 'system' %}{{ m.content }}\n\n"
     "{% elif m.role == 'user' %}{{ m.content }} [/INST]{% else %} {{ m.content }}</s>{% endif %}"
     "{% endfor %}"},
    {"mistral-v3",
     "{{ bos_token }}{% for m in messages %}"
     "{% if loop.first or messages[loop.index0 - 1].role == 'assistant' %}[INST] {% endif %}"
     "{% if m.role == 'system' %}{{ m.content }}\n\n"
     "{% elif m.role == 'user' %}{{ m.content }}[/INST]"
     "{% else %} {{ m.content | trim }}</s>{% endif %}{% endfor %}"},
    {"mistral-v3-tekken",
     "{{ bos_token }}{% for m in messages %}"
     "{% if loop.first or messages[loop.index0 - 1].role == 'assistant' %}[INST]{% endif %}"
     "{% if m.role == 'system' %}{{ m.content }}\n\n"
     "{% elif m.role == 'user' %}{{ m.content }}[/INST]{% else %}{{ m.content }}</s>{% endif %}"
     "{% endfor %}"},
    {"seed_oss",
     "{% for m in messages %}<seed:bos>{{ m.role }}\n"
     "{{ m.content | trim if m.role == 'assistant' else m.content }}<seed:eos>{% endfor %}"
     "{% if add_generation_prompt %}<seed:bos>assistant\n{% endif %}"},
};

std::string filled(std::string_view form, bool trims) {
  std::string source;
  for (const char c : form) {
    if (c == '@') {
      source += "{{ m.role }}";
    } else if (c == '%') {
      source += trims ? "{{ m.content | trim }}" : "{{ m.content }}";
    } else {
      source += c;
    }
  }
  return source;
}

std::string source_of(const RoleTemplate& one) {
  return (one.has_bos ? "{{ bos_token }}" : "") +
         (one.name == "chatglm4" ? std::string("[gMASK]<sop>") : std::string()) +
         "{% for m in messages %}{% if m.role == 'system' %}" + filled(one.system, one.trims) +
         "{% elif m.role == 'assistant' %}" + filled(one.assistant, one.trims) + "{% else %}" +
         filled(one.user, one.trims) + "{% endif %}{% endfor %}{% if add_generation_prompt %}" +
         std::string(one.opening) + "{% endif %}";
}

}  // namespace

std::vector<std::string> builtin_template_names() {
  std::vector<std::string> names;
  for (const RoleTemplate& one : kRoleTemplates) names.emplace_back(one.name);
  for (const OwnTemplate& one : kOwnTemplates) names.emplace_back(one.name);
  std::ranges::sort(names);
  return names;
}

std::string builtin_template(std::string_view name) {
  const auto* by_role = std::ranges::find(kRoleTemplates, name, &RoleTemplate::name);
  if (by_role != std::end(kRoleTemplates)) return source_of(*by_role);
  const auto* own = std::ranges::find(kOwnTemplates, name, &OwnTemplate::name);
  return own == std::end(kOwnTemplates) ? "" : std::string(own->source);
}

}  // namespace cli

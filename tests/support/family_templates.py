"""Chat templates in the manner of model families, each as short as shows what is particular to it.

They are written for these tests, and hold what the families' own templates do: how turns begin and
end, how calls and answers are written, and what becomes of the thinking of earlier turns.
"""

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from agentrl.chat.tokenizer import train_tokenizer

_THOUGHT = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- macro said(m, i) %}{%- set c = m.content or '' %}"
    "{%- if '</think>' in c and i < ns.last %}{{ c.split('</think>')[-1].lstrip('\\n') }}"
    "{%- else %}{{ c }}{%- endif %}{%- endmacro %}"
)
_CHATML = (
    "{%- if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{%- for m in messages %}{%- if m.role == 'tool' %}"
    "{{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
    "{%- elif m.role == 'assistant' %}{{- '<|im_start|>assistant\n' + said(m, loop.index0) }}"
    "{%- for call in m.tool_calls or [] %}CALL{%- endfor %}{{- '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\nPROMPT' }}{%- endif %}"
)
_QWEN_CALL = (
    "{{- ('\n\n' if m.content else '') if loop.first else '\n' }}"
    "{{- '<tool_call>\n<function=' + call.function.name + '>\n' }}"
    "{%- for k, v in call.function.arguments.items() %}{{- '<parameter=' + k + '>\n' }}"
    "{{- v if v is string else v | tojson if v is mapping or v is iterable else v | string }}"
    "{{- '\n</parameter>\n' }}{%- endfor %}{{- '</function>\n</tool_call>' }}"
)
_JSON_CALL = (
    "{{- ('\n' if m.content else '') if loop.first else '\n' }}"
    "{{- '<tool_call>\n{\"name\": ' + call.function.name | tojson + ', \"arguments\": ' }}"
    "{{- call.function.arguments | tojson + '}\n</tool_call>' }}"
)
_GLM = (
    "[gMASK]<sop>{%- if tools %}<|system|>\n{{ tools | tojson }}{% endif %}"
    "{%- for m in messages %}{%- if m.role == 'assistant' %}{{- '<|assistant|>\n' }}"
    "{{- said(m, loop.index0) }}{%- for call in m.tool_calls or [] %}"
    "{{- '\n' if m.content or not loop.first }}{{- '<tool_call>' + call.function.name + '\n' }}"
    "{%- for k, v in call.function.arguments.items() %}{{- '<arg_key>' + k + '</arg_key>\n' }}"
    "{{- '<arg_value>' + (v if v is string else v | tojson) + '</arg_value>\n' }}{%- endfor %}"
    "{{- '</tool_call>' }}{%- endfor %}"
    "{%- elif m.role == 'tool' %}"
    "{%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|observation|>' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- else %}{{- '<|' + m.role + '|>\n' + m.content }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\n' }}{%- endif %}"
)
_MISTRAL = (
    "<s>{%- if tools %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}"
    "{%- endif %}{%- for m in messages %}{%- if m.role == 'user' or m.role == 'system' %}"
    "{{- '[INST]' + m.content + '[/INST]' }}{%- elif m.role == 'tool' %}"
    "{%- if m.tool_call_id | length != 9 %}{{ raise_exception('nine letters') }}{%- endif %}"
    "{{- '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}{%- else %}{{- m.content }}"
    "{%- for call in m.tool_calls or [] %}{%- if call.id | length != 9 %}"
    "{{ raise_exception('nine letters') }}{%- endif %}CALL{%- endfor %}{{- '</s>' }}"
    "{%- endif %}{%- endfor %}"
)
_DEEPSEEK = (
    "<s>{%- if tools %}{{- tools | tojson }}{%- endif %}{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}{{- '<Assistant>' + m.content }}{%- if m.tool_calls %}"
    "{{- '<\uff5ctool\u2581calls\u2581begin\uff5c>' }}{%- for call in m.tool_calls %}"
    "{{- '<\uff5ctool\u2581call\u2581begin\uff5c>' }}CALL"
    "{{- '<\uff5ctool\u2581call\u2581end\uff5c>' }}{%- endfor %}"
    "{{- '<\uff5ctool\u2581calls\u2581end\uff5c>' }}{%- endif %}{{- '</s>' }}"
    "{%- else %}{{- '<' + m.role + '>' + m.content }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<Assistant>' }}{%- endif %}"
)
_KIMI = (
    "{%- if tools %}<|im_system|>{{ tools | tojson }}<|im_end|>{% endif %}"
    "{%- for m in messages %}{%- if m.role == 'assistant' %}{{- '<|im_assistant|>' + m.content }}"
    "{%- if m.tool_calls %}{{- '<|tool_calls_section_begin|>' }}{%- for call in m.tool_calls %}"
    "{{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' }}"
    "{{- call.function.arguments | tojson + '<|tool_call_end|>' }}{%- endfor %}"
    "{{- '<|tool_calls_section_end|>' }}{%- endif %}{{- '<|im_end|>' }}"
    "{%- elif m.role == 'tool' %}"
    "{{- '<|im_tool|>' + m.tool_call_id + '\n' + m.content + '<|im_end|>' }}"
    "{%- else %}{{- '<|im_' + m.role + '|>' + m.content + '<|im_end|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_assistant|>' }}{%- endif %}"
)
_MINIMAX = (
    "{%- if tools %}]~b]system{{ tools | tojson }}[e~[\n{% endif %}"
    "{%- for m in messages %}{%- if m.role == 'assistant' %}{{- ']~b]ai\n' }}"
    "{{- said(m, loop.index0) }}{%- if m.tool_calls %}"
    "{{- ('\n' if m.content else '') + '<minimax:tool_call>\n' }}{%- for call in m.tool_calls %}"
    "{{- '<invoke name=\"' + call.function.name + '\">\n' }}"
    "{%- for k, v in call.function.arguments.items() %}{{- '<parameter name=\"' + k + '\">' }}"
    "{{- (v if v is string else v | tojson) + '</parameter>\n' }}{%- endfor %}"
    "{{- '</invoke>\n' }}{%- endfor %}{{- '</minimax:tool_call>' }}{%- endif %}{{- '[e~[\n' }}"
    "{%- else %}{{- ']~b]' + m.role + '\n' + m.content + '[e~[\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- ']~b]ai\n<think>\n' }}{%- endif %}"
)
_HARMONY = (
    "{%- if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}"
    "{%- set ns = namespace(tool='') %}{%- for m in messages %}{%- if m.role == 'assistant' %}"
    "{%- if m.tool_calls %}{%- if m.thinking %}"
    "{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{%- endif %}"
    "{%- set ns.tool = m.tool_calls[0].function.name %}"
    "{{- '<|start|>assistant to=functions.' + ns.tool + '<|channel|>commentary json<|message|>' }}"
    "{{- m.tool_calls[0].function.arguments | tojson + '<|call|>' }}"
    "{%- elif loop.last and not add_generation_prompt %}{%- if m.thinking %}"
    "{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{%- endif %}"
    "{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|return|>' }}"
    "{%- else %}{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}"
    "{%- endif %}{%- elif m.role == 'tool' %}"
    "{{- '<|start|>functions.' + ns.tool + ' to=assistant<|message|>' + m.content + '<|end|>' }}"
    "{%- else %}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"
)
_GEMMA4 = (
    "{%- macro v(x) %}{%- if x is string %}{{- '<|\"|>' + x + '<|\"|>' }}"
    "{%- elif x is mapping %}{{- '{' }}{%- for k, y in x | dictsort %}{{- ',' if not loop.first }}"
    "{{- k + ':' }}{{- v(y) }}{%- endfor %}{{- '}' }}{%- elif x is iterable %}{{- '[' }}"
    "{%- for y in x %}{{- ',' if not loop.first }}{{- v(y) }}{%- endfor %}{{- ']' }}"
    "{%- else %}{{- x | tojson }}{%- endif %}{%- endmacro %}"
    "<bos>{%- if tools %}<|turn>system\n{{ tools | tojson }}<turn|>\n{% endif %}"
    "{%- for m in messages %}{%- if m.role == 'assistant' %}"
    "{%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|turn>model\n' }}{%- endif %}"
    "{%- if m.reasoning_content %}"
    "{{- '<|channel>thought\n' + m.reasoning_content + '\n<channel|>' }}{%- endif %}"
    "{{- m.content }}{%- for call in m.tool_calls or [] %}"
    "{{- '<|tool_call>call:' + call.function.name }}{{- v(call.function.arguments) }}"
    "{{- '<tool_call|>' }}{%- endfor %}"
    "{%- if m.tool_calls %}{{- '<|tool_response>' if loop.last }}{%- else %}{{- '<turn|>\n' }}"
    "{%- endif %}{%- elif m.role == 'tool' %}"
    "{{- '<|tool_response>response:' + (m.name or '') + m.content + '<tool_response|>' }}"
    "{%- else %}{{- '<|turn>' + m.role + '\n' + m.content + '<turn|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt and messages[-1].role != 'tool' %}"
    "{{- '<|turn>model\n' }}{%- endif %}"
)


@dataclass(frozen=True)
class Family:
    """A chat template and the tokens that it writes."""

    source: str
    special: tuple[str, ...]
    dialect: str
    eos: str


def _chatml(call: str, prompt: str = "") -> str:
    return _THOUGHT + _CHATML.replace("CALL", call).replace("PROMPT", prompt)


def _mistral(call: str) -> str:
    return _MISTRAL.replace("CALL", call)


_JSON = "{{- call.function.arguments | tojson }}"
_IM = ("<|im_start|>", "<|im_end|>")
_INST = ("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]")
_DEEP = (
    *("<user>", "<tool>", "<Assistant>"),
    *(
        f"<\uff5ctool\u2581{name}\uff5c>"
        for name in ("calls\u2581begin", "calls\u2581end", "call\u2581begin", "call\u2581end")
    ),
    "<\uff5ctool\u2581sep\uff5c>",
)
FAMILIES: dict[str, Family] = {
    "qwen3": Family(_chatml(_JSON_CALL), _IM, "hermes", "<|im_end|>"),
    "qwen3.5": Family(_chatml(_QWEN_CALL, "<think>\n"), _IM, "qwen3_coder", "<|im_end|>"),
    "qwen3-coder": Family(_chatml(_QWEN_CALL), _IM, "qwen3_coder", "<|im_end|>"),
    "glm-4.5": Family(
        _THOUGHT + _GLM,
        ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        "glm_4_5",
        "<|endoftext|>",
    ),
    "mistral": Family(
        _mistral("{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' }}" + _JSON),
        (*_INST, "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "<s>", "</s>"),
        "mistral",
        "</s>",
    ),
    "mistral-v11": Family(
        _mistral(
            "{{- '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + call.id + '[ARGS]' }}" + _JSON
        ),
        (*_INST, "[ARGS]", "[CALL_ID]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "<s>", "</s>"),
        "mistral_v11",
        "</s>",
    ),
    "mistral-v3": Family(
        _mistral(
            "{{- '[TOOL_CALLS][' if loop.first else ', ' }}{{- '{\"name\": ' }}"
            "{{- call.function.name | tojson + ', \"arguments\": ' }}" + _JSON + "{{- ', \"id\": '"
            " + call.id | tojson + '}' }}{{- ']' if loop.last }}"
        ),
        (*_INST, "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "<s>", "</s>"),
        "mistral_v3",
        "</s>",
    ),
    "deepseek-v3": Family(
        _DEEPSEEK.replace(
            "CALL",
            "{{- 'function<\uff5ctool\u2581sep\uff5c>' + call.function.name + '\n```json\n' }}"
            + _JSON
            + "{{- '\n```' }}",
        ).replace(
            "{%- endfor %}{{- '<\uff5ctool\u2581calls\u2581end",
            "{{- '\n' if not loop.last }}{%- endfor %}{{- '<\uff5ctool\u2581calls\u2581end",
        ),
        (*_DEEP, "<s>", "</s>"),
        "deepseek_v3",
        "</s>",
    ),
    "deepseek-v3.1": Family(
        _DEEPSEEK.replace(
            "CALL", "{{- call.function.name + '<\uff5ctool\u2581sep\uff5c>' }}" + _JSON
        ),
        (*_DEEP, "<s>", "</s>"),
        "deepseek_v31",
        "</s>",
    ),
    "kimi-k2": Family(
        _KIMI,
        (
            *("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_tool|>", "<|im_end|>"),
            *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
            *("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        ),
        "kimi_k2",
        "<|im_end|>",
    ),
    "minimax-m2": Family(_THOUGHT + _MINIMAX, ("]~b]", "[e~["), "minimax_m2", "[e~["),
    "gpt-oss": Family(
        _HARMONY,
        (
            *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"),
            "<|constrain|>",
        ),
        "harmony",
        "<|return|>",
    ),
    "gemma-4": Family(
        _GEMMA4,
        (
            *("<bos>", "<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", '<|"|>'),
            *("<|tool_response>", "<tool_response|>", "<|channel>", "<channel|>"),
        ),
        "gemma4",
        "<turn|>",
    ),
}


def tokenizer_of(family: Family, folder: Path) -> PreTrainedTokenizerFast:
    """Return a small tokenizer with the special tokens and the template of a family."""
    texts = ["What is the weather in Oslo? It is raining."]
    tokenizer = train_tokenizer(texts, vocab_size=300, folder=folder)
    special = [token for token in family.special if token not in tokenizer.all_special_tokens]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.eos_token = family.eos
    tokenizer.chat_template = family.source
    tokenizer.save_pretrained(folder)
    return tokenizer

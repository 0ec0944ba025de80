#!/usr/bin/env python3
"""Writes expected.json: what transformers makes of every template and conversation here, and Jinja of every snippet.

Needs transformers (version 5) and jinja2; reads *.jinja and snippets.txt beside this file. Run it again after adding a
template, a conversation or a snippet.
"""

import datetime
import json
import pathlib

import jinja2
import transformers.utils.chat_template_utils as chat

HERE = pathlib.Path(__file__).parent


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 7, 4, 15, 9, 26)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'The weather of a "city".',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "its name"},
                    "days": {"type": "integer", "enum": [1, 2, 3]},
                },
                "required": ["city"],
            },
        },
    }
]

SYSTEM = {"role": "system", "content": "You are terse.\n"}
HELLO = {"role": "user", "content": "Hi there! <|x|> é 日本 😀"}
FINE = {"role": "assistant", "content": " I am fine. "}
SUM = {"role": "user", "content": "2+2?"}
THOUGHT_INLINE = {"role": "assistant", "content": "<think>\nlet me see\n</think>\n\nFour."}
THOUGHT = {"role": "assistant", "content": "Four.", "reasoning_content": "let me see"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call12345",
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 3, "x": [1.5, None, True]}},
        }
    ],
}
RESULT = {"role": "tool", "tool_call_id": "call12345", "name": "get_weather", "content": '{"temp": 21}'}

# name: (messages, further arguments of apply_chat_template)
CONVERSATIONS = {
    "user": ([HELLO], {}),
    "system": ([SYSTEM, HELLO], {}),
    "turns": ([SYSTEM, HELLO, FINE, SUM], {}),
    "no_prompt": ([SYSTEM, HELLO, FINE], {"add_generation_prompt": False}),
    "empty_content": ([{"role": "user", "content": ""}], {}),
    "same_role_twice": ([HELLO, SUM], {}),
    "assistant_first": ([FINE, HELLO], {}),
    "thinking_inline": ([SUM, THOUGHT_INLINE, HELLO], {}),
    "thinking_field": ([SUM, THOUGHT, HELLO, THOUGHT, SUM], {}),
    "thinking_off": ([SUM, THOUGHT, HELLO], {"enable_thinking": False}),
    "thinking_on": ([SUM], {"enable_thinking": True, "reasoning_effort": "high"}),
    "tools": ([SYSTEM, HELLO, CALL, RESULT], {"tools": TOOLS}),
    "tools_answered": ([HELLO, CALL, RESULT, FINE, SUM], {"tools": TOOLS, "add_generation_prompt": False}),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "Hello"}]}], {}),
    "unknown_role": ([{"role": "critic", "content": "x"}], {}),
}

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

SNIPPET_VARIABLES = {
    "n": 5,
    "f": 2.5,
    "s": "Hello, Wörld ß ΣΑΣ ",
    "l": [3, 1, 2],
    "d": {"b": 1, "a": [1, 2, {"x": None}], "items": 7},
    "t": True,
    "none_": None,
    "users": [
        {"name": "bob", "age": 3, "tags": ["x", "y"]},
        {"name": "Al", "age": 10},
        {"name": "cy", "age": 3, "tags": []},
    ],
    "u": "日本語 <b>&\"'</b>\n\tx",
    "e": "",
    "deep": [[1, [2, [3]]], {"k": {"k2": [True, False, None, 1.5, "q'\""]}}],
}


def attempt(render):
    """{"ok": text}; {"raised": message} where the template calls raise_exception; {"error": kind} otherwise."""
    try:
        text = render()
        text.encode("utf-8")
        return {"ok": text}
    except Exception as error:  # any failure is an expectation
        if type(error) is jinja2.exceptions.TemplateError:
            return {"raised": str(error)}
        return {"error": type(error).__name__}


def apply(source, messages, arguments):
    messages = chat._normalize_chat_messages(messages)
    arguments = {"add_generation_prompt": True, **SPECIAL_TOKENS, **arguments}
    return chat.render_jinja_template(conversations=[messages], chat_template=source, **arguments)[0][0]


def main():
    chat.datetime = FixedClock
    templates = {}
    for path in sorted(HERE.glob("*.jinja")):
        source = path.read_bytes().decode("utf-8")
        templates[path.stem] = {
            name: attempt(lambda: apply(source, messages, arguments))
            for name, (messages, arguments) in CONVERSATIONS.items()
        }
    snippets = []
    for template in (HERE / "snippets.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n====\n"):
        expected = attempt(lambda: chat._compile_jinja_template(template).render(**SNIPPET_VARIABLES))
        snippets.append({"template": template, **expected})
    result = {
        "conversations": {
            name: {"messages": messages, **arguments} for name, (messages, arguments) in CONVERSATIONS.items()
        },
        "templates": templates,
        "snippet_variables": SNIPPET_VARIABLES,
        "snippets": snippets,
    }
    with open(HERE / "expected.json", "w", encoding="utf-8") as file:
        json.dump(result, file, ensure_ascii=False, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()

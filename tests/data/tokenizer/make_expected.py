#!/usr/bin/env python3
"""Makes the tokenizers and the expected results of this folder with Hugging Face's `tokenizers` package.

  pip install tokenizers
  python3 make_expected.py                  small tokenizers and all expected results
  python3 make_expected.py FILE NAME        expected results for another tokenizer.json, as NAME.expected.json

corpus.json is written by hand: the texts, many scripts and oddities. For each tokenizer NAME.json there is
NAME.expected.json with, for each text, `ids`, `decoded` (null where it equals the text) and, for the first texts,
`with_special`: the ids with the post-processor's tokens, and their text without special tokens.

The small tokenizers are trained on the corpus, with the components of a model family around a few hundred merges.
smollm2.json and stories260K.json are real ones: HuggingFaceTB/SmolLM2-135M-Instruct (Apache 2.0; merges rewritten in
their shorter form) and the tokenizer of the demo's model (MIT).
"""

import json
import pathlib
import sys

from tokenizers import Tokenizer, models, trainers

HERE = pathlib.Path(__file__).resolve().parent
WITH_SPECIAL = 12

GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
PHI4 = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(0x100 + i) for i in range(len(others))]


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern if isinstance(pattern, dict) else {"Regex": pattern},
            "behavior": behavior, "invert": invert}


def sequence(kind, *parts):
    return {"type": "Sequence", kind: list(parts)}


def bytes_without_regex():
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern if isinstance(pattern, dict) else {"String": pattern},
            "content": content}


def added(content, special=True, **settings):
    return {"id": None, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": special, **settings}


def template(first, last=()):
    """A post-processor that puts the tokens `first` in front and `last` behind."""
    token = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
    single = [*map(token, first), {"Sequence": {"id": "A", "type_id": 0}}, *map(token, last)]
    names = sorted({*first, *last})
    return {"type": "TemplateProcessing", "single": single,
            "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {name: {"id": name, "ids": [None], "tokens": [name]} for name in names}}


def build(texts, size, alphabet, first=(), tokens=(), model=None, pairs=False, trainer=None, **parts):
    """A tokenizer.json: trains the merges through the normalizer and pre-tokenizer of `parts`."""
    frame = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
             "pre_tokenizer": None, "post_processor": None, "decoder": None, **parts}
    options = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
               "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **(model or {})}
    empty = {**frame, "post_processor": None, "model": {"type": "BPE", **options, "unk_token": None, "vocab": {},
                                                         "merges": []}}
    training = Tokenizer.from_str(json.dumps(empty))
    training.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, limit_alphabet=400, show_progress=False, max_token_length=16,
        special_tokens=list(first), **(trainer or {})))
    trained = json.loads(training.to_str())["model"]
    vocab = trained["vocab"]
    frame["model"] = {"type": "BPE", **options, "vocab": vocab,
                      "merges": [m if pairs else " ".join(m) for m in trained["merges"]]}
    next_id = len(vocab)
    for token in tokens:
        if token["content"] in vocab:
            token["id"] = vocab[token["content"]]
        else:
            token["id"], next_id = next_id, next_id + 1
        frame["added_tokens"].append(token)
    frame["added_tokens"].sort(key=lambda token: token["id"])
    ids = {**vocab, **{token["content"]: token["id"] for token in frame["added_tokens"]}}
    post_processor = frame["post_processor"] or {}
    for processor in post_processor.get("processors", [post_processor]):
        for name, entry in processor.get("special_tokens", {}).items():
            entry["ids"] = [ids[name]]
    return frame


def families(texts):
    byte_level = byte_alphabet()
    spm_first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    spm_model = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    spm_tokens = lambda **settings: [added("<unk>"), added("<s>"), added("</s>", **settings)]
    spm_decoder = lambda *more: sequence("decoders", replace("\u2581", " "), {"type": "ByteFallback"},
                                         {"type": "Fuse"}, *more)
    strip_one = {"type": "Strip", "content": " ", "start": 1, "stop": 0}

    yield "qwen2", build(
        texts, 700, byte_level, normalizer={"type": "NFC"},
        tokens=[added("<|endoftext|>"), added("<|im_start|>"), added("<|im_end|>"), added("<tool_call>", special=False)],
        pre_tokenizer=sequence("pretokenizers", split(QWEN), bytes_without_regex()),
        post_processor={**bytes_without_regex()}, decoder={**GPT2}, model={"continuing_subword_prefix": "",
                                                                           "end_of_word_suffix": ""})
    yield "llama3_small", build(
        texts, 700, byte_level, tokens=[added("<|begin_of_text|>"), added("<|start_header_id|>"),
                                       added("<|end_header_id|>"), added("<|eot_id|>")],
        pre_tokenizer=sequence("pretokenizers", split(LLAMA3), bytes_without_regex()),
        post_processor=sequence("processors", {**GPT2}, template(["<|begin_of_text|>"])), decoder={**GPT2},
        model={"ignore_merges": True})
    yield "llama2", build(
        texts, 800, [], spm_first, tokens=spm_tokens(), model=spm_model,
        normalizer=sequence("normalizers", {"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581")),
        post_processor=template(["<s>"]), decoder=spm_decoder(strip_one))
    yield "phi3", build(
        texts, 800, [], spm_first, model=spm_model,
        tokens=spm_tokens(rstrip=True, special=False) +
        [added("<|endoftext|>"), added("<|assistant|>", rstrip=True), added("<|user|>", rstrip=True),
         added("<|end|>", rstrip=True), added("<|ls|>", lstrip=True), added("<|rs|>", rstrip=True),
         added("<|both|>", lstrip=True, rstrip=True), added("<|sw|>", single_word=True)],
        normalizer=sequence("normalizers", {"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581")),
        post_processor=template([]), decoder=spm_decoder(strip_one))
    yield "mistral_spm", build(
        texts, 800, [], spm_first, pairs=True, model=spm_model,
        tokens=spm_tokens() + [added("[INST]"), added("[/INST]")],
        pre_tokenizer={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False},
        post_processor=template(["<s>"]), decoder=spm_decoder(strip_one))
    yield "gemma", build(
        texts, 800, [], ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>",
                         *("\n" * n for n in range(1, 4)), *("\u2581" * n for n in range(2, 5)), *spm_first[3:]],
        model=spm_model, normalizer=replace(" ", "\u2581"), pre_tokenizer=split({"String": " "}, "MergedWithPrevious"),
        tokens=[added(t) for t in ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")] +
        [added(t, special=False) for t in ("<mask>", "\n\n", "\n\n\n", "\u2581\u2581", "\u2581\u2581\u2581")],
        post_processor=template(["<bos>"]), decoder=spm_decoder())
    yield "mistral_tekken", build(
        texts, 700, byte_level, ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"],
        [added(t) for t in ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")],
        model={"ignore_merges": True}, pre_tokenizer=sequence("pretokenizers", split(TEKKEN), bytes_without_regex()),
        post_processor=template(["<s>"]), decoder={**GPT2}, pairs=True)
    yield "phi4", build(
        texts, 700, byte_level, tokens=[added("<|endoftext|>", lstrip=True, rstrip=True),
                                       added("<|im_start|>", lstrip=True, rstrip=True),
                                       added("<|im_end|>", lstrip=True, rstrip=True)],
        pre_tokenizer=sequence("pretokenizers", split(PHI4, "Removed", True), bytes_without_regex()), decoder={**GPT2})
    yield "phi4_mini", build(
        texts, 700, byte_level, tokens=[added("<|endoftext|>"), added("<|end|>", rstrip=True),
                                       added("<|user|>", rstrip=True)],
        pre_tokenizer=sequence("pretokenizers", split(O200K, "Removed", True), bytes_without_regex()),
        post_processor={**GPT2}, decoder={**GPT2})
    yield "deepseek", build(
        texts, 700, byte_level, tokens=[added("<|endoftext|>"), added("NORM", special=False, normalized=True)],
        normalizer=sequence("normalizers"),
        pre_tokenizer=sequence("pretokenizers", split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK),
                               bytes_without_regex()),
        post_processor=template(["<|endoftext|>"]), decoder={**GPT2})
    yield "roberta", build(
        texts, 700, byte_level, ["<s>", "</s>"], [added("<s>", normalized=True), added("</s>", normalized=True),
                                                   added("<mask>", lstrip=True), added("norm", special=False,
                                                                                       normalized=True)],
        pre_tokenizer={**GPT2, "add_prefix_space": True},
        post_processor={"type": "RobertaProcessing", "sep": ["</s>", 1], "cls": ["<s>", 0], "trim_offsets": True,
                        "add_prefix_space": True}, decoder={**GPT2})
    yield "clip", build(
        texts, 700, [], ["<|endoftext|>"], [added("<|endoftext|>"), added("ADDED", special=False, normalized=True)],
        model={"unk_token": "<|endoftext|>", "end_of_word_suffix": "</w>"},
        trainer={"end_of_word_suffix": "</w>"},
        normalizer=sequence("normalizers", {"type": "NFKC"}, replace({"Regex": r"\s+"}, " "), {"type": "Lowercase"}),
        pre_tokenizer=sequence("pretokenizers", split(
            r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", "Removed", True),
            {"type": "WhitespaceSplit"}), decoder={"type": "BPEDecoder", "suffix": "</w>"})
    yield "bert", build(
        texts, 700, [], ["[UNK]", "[CLS]", "[SEP]"], [added("[UNK]"), added("[CLS]"), added("[SEP]"),
                                                         added("<mask>", normalized=True)],
        model={"unk_token": "[UNK]", "continuing_subword_prefix": "##", "fuse_unk": True},
        trainer={"continuing_subword_prefix": "##"},
        normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                    "lowercase": True}, pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor={"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]},
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    yield "metaspace", build(
        texts, 700, [], ["<unk>"], [added("<unk>"), added("<s>", lstrip=True)], model={"unk_token": "<unk>"},
        normalizer=sequence("normalizers", {"type": "NFKD"}, {"type": "StripAccents"},
                            {"type": "Strip", "strip_left": True, "strip_right": True}),
        pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": True},
                               {"type": "Punctuation", "behavior": "Contiguous"},
                               {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always",
                                "split": True}),
        decoder={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True})
    yield "whitespace", build(
        texts, 600, byte_level, tokens=[added("<|im_end|>")],
        normalizer=sequence("normalizers", {"type": "NFD"}, replace({"Regex": r"\A +| +\z|\b'"}, "")),
        pre_tokenizer=sequence("pretokenizers", {"type": "Whitespace"},
                               split({"Regex": r"[aeiou]|\w\B"}, "MergedWithNext"), split({"String": "st"}, "Removed"),
                               {"type": "Digits", "individual_digits": False}, bytes_without_regex()), decoder=None)


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


def expect(name, tokenizer, texts):
    tokenizer.no_truncation()
    tokenizer.no_padding()
    expected = {"ids": [], "decoded": [], "with_special": []}
    for i, text in enumerate(texts):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        expected["ids"].append(ids)
        expected["decoded"].append(None if decoded == text else decoded)
        if i < WITH_SPECIAL:
            special = tokenizer.encode(text, add_special_tokens=True).ids
            expected["with_special"].append([special, tokenizer.decode(special, skip_special_tokens=True)])
    write(HERE / f"{name}.expected.json", expected)


def main():
    texts = json.loads((HERE / "corpus.json").read_text())
    if len(sys.argv) == 3:
        expect(sys.argv[2], Tokenizer.from_file(sys.argv[1]), texts)
        return
    for name, frame in families(texts):
        write(HERE / f"{name}.json", frame)
    for path in sorted(HERE.glob("*.json")):
        if path.name != "corpus.json" and not path.name.endswith(".expected.json"):
            expect(path.stem, Tokenizer.from_file(str(path)), texts)


if __name__ == "__main__":
    main()

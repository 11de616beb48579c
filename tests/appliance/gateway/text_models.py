"""Small checkpoints with tokenizers and templates of every kind that the gateway meets."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from tests.tiny_model import make_tiny_model


def with_template(directory: Path, template: str | None) -> Path:
    """Make a tiny byte-level model with this chat template, or none."""
    make_tiny_model(directory)
    path = directory / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings.pop("chat_template")
    if template is not None:
        settings["chat_template"] = template
    path.write_text(json.dumps(settings))
    return directory


def with_sentencepiece(directory: Path, template: str | None = None) -> Path:
    """Make a tiny model whose tokenizer is of the Llama 2 kind: byte fallback, BOS by itself."""
    with_template(directory, template)
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", *"abcdefghijklmnopqrstuvwxyz", "he", "ll", "\u2581he"]
    merges = [("h", "e"), ("l", "l"), ("\u2581", "he")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in pieces[:3]]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def with_unigram(directory: Path) -> Path:
    """Make a tiny model whose control tokens are ordinary entries of a unigram vocabulary."""
    make_tiny_model(directory)
    pieces = ["<unk>", "<s>", "</s>", *"abc<>/s", "\u2581"]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in pieces[:3]]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory

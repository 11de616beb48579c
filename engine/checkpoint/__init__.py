"""Reads GGUF and Hugging Face checkpoints: metadata, tokenizer, template, tensors. No torch."""

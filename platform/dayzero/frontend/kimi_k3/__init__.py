"""Kimi K3: vocabulary and tokenizer."""

"""Models and tokenizers from folders, GGUF files and the hub."""

"""What is kept on disk: states as safetensors and JSON, files that appear whole or not at all."""

from .saving import NONSENSE, load, save, write_atomically

__all__ = ["NONSENSE", "load", "save", "write_atomically"]

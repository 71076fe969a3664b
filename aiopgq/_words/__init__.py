"""The nouns: pure values, with no I/O, no event loop and no database."""

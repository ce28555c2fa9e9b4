"""The nouns of Everbeat: plain values from the standard library, known to every other layer."""

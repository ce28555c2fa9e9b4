"""Everbeat in one SQLite file."""

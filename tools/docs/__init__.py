"""Generators of docs/: reference pages generated from the models."""

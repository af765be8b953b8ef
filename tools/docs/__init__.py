"""Generators of reference pages in docs/, from the models."""

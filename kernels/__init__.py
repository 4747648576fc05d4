"""Arithmetic on bytes: quant blocks and shapes, no models."""

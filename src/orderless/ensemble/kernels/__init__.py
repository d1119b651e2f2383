"""Batched layers and fused operations for a particle axis, by Triton kernels on a GPU."""

"""The small kernels of a step on a GPU: losses, weights and noise, by Triton."""

"""Operations written for a particle axis: layouts, batched layers, and Triton kernels on a GPU."""

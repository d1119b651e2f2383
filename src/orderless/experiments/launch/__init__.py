"""Where cells are computed: on this machine, on a Ray cluster, by torchrun's ranks together."""

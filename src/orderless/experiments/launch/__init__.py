"""Where cells run: processes on this machine, a Ray cluster, or ranks that share one cell."""

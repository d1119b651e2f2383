"""The experiments of `orderless`: benchmarks, methods, runs and reports."""

from orderless import __version__ as __version__

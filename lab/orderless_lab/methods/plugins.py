"""Plug-ins: modules named on the command line, and installed packages."""

from collections.abc import Iterable
from importlib.metadata import entry_points

from orderless.cli.references import import_module

GROUP = "orderless_lab.methods"  # entry points of installed packages


def load_plugins(modules: Iterable[str] = ()) -> None:
    """Import the modules that register methods: these, and those of installed packages."""
    for name in modules:
        import_module(name)
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:
            raise ValueError(
                f"the installed plug-in {point.name} ({point.value}) cannot be imported: "
                f"{type(error).__name__}: {error}; uninstall or fix it"
            ) from error

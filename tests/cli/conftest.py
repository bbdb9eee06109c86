"""Model folders and a way to run the program, for the tests of its commands."""

from support.command_line import folder, no_hub, no_window, not_rope, run  # noqa: F401

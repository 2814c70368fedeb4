"""XLA flags: what the installed compilers accept, what is wrong with a line, presets.

Imports nothing of ours, and neither torch nor jax.
"""

from flags._applied import Applied, Message
from flags._apply import applied, apply, options, plan
from flags._catalogue import Catalogue, catalogue
from flags._finding import Finding, LintedFlag, LintResult
from flags._flag import Flag
from flags._library import Backend, Library, NotInstalledError, installed
from flags._lint import lint
from flags._preset import Preset, PresetFlag, preset, presets, write
from flags._workload import Workload

__all__ = [
    "Applied",
    "Backend",
    "Catalogue",
    "Finding",
    "Flag",
    "Library",
    "LintResult",
    "LintedFlag",
    "Message",
    "NotInstalledError",
    "Preset",
    "PresetFlag",
    "Workload",
    "applied",
    "apply",
    "catalogue",
    "installed",
    "lint",
    "options",
    "plan",
    "preset",
    "presets",
    "write",
]

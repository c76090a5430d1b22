"""The tests see one copy of the library, the installed one, although the root is the package."""

import sys
from pathlib import Path

import lockstep
from source.source_tree import ROOT


def _loaded_from(path):
    return {
        name
        for name, module in list(sys.modules.items())
        if getattr(module, "__file__", None) and Path(module.__file__).resolve() == path
    }


def test_the_library_is_loaded_once():
    assert _loaded_from(Path(lockstep.__file__).resolve()) == {"lockstep"}


def test_the_root_folder_is_not_loaded_under_another_name():
    assert _loaded_from((ROOT / "__init__.py").resolve()) <= {"lockstep"}

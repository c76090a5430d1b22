"""The public symbols of the library, for the tests that hold rules about them.

    for name, symbol in public_symbols():
        assert symbol.__doc__, name
"""

import inspect
from pathlib import Path

import lockstep
import lockstep.training

PUBLIC_MODULES = (lockstep, lockstep.training)


def public_modules():
    """The public modules as a list of (name, module)."""
    return [(module.__name__, module) for module in PUBLIC_MODULES]


def public_symbols():
    """The objects that public modules list in `__all__`, each once, as (dotted name, object)."""
    found = {}
    for module_name, module in public_modules():
        for name in getattr(module, "__all__", ()):
            symbol = getattr(module, name, None)
            if symbol is not None and not inspect.ismodule(symbol):
                found.setdefault(id(symbol), (f"{module_name}.{name}", symbol))
    return list(found.values())


def public_members(name, symbol):
    """The public methods and properties of a class that our own classes define.

    Members that a class inherits from TensorFlow or Keras are not ours and are left out.

    Returns:
      A list of (dotted name, function); a property stands as its getter.
    """
    if not inspect.isclass(symbol):
        return []
    found = {}
    for owner in inspect.getmro(symbol):
        if owner.__module__.partition(".")[0] != "lockstep":
            continue
        for member_name, member in vars(owner).items():
            function = _function(member)
            if not member_name.startswith("_") and function is not None:
                found.setdefault(member_name, (f"{name}.{member_name}", function))
    return list(found.values())


def is_ours(symbol):
    """Whether a class or function is defined in the library and not handed on from elsewhere."""
    module = getattr(symbol, "__module__", None) or ""
    return module.partition(".")[0] == "lockstep"


def place(symbol):
    """File and line of a symbol, the file from the project's root, as near as Python can tell."""
    symbol = inspect.unwrap(symbol)
    try:
        path = Path(inspect.getsourcefile(symbol))
        line = inspect.getsourcelines(symbol)[1]
    except (TypeError, OSError):
        return "__init__.py", 0
    library = Path(lockstep.__file__).parent
    return str(path.relative_to(library) if path.is_relative_to(library) else path), line


def _function(member):
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, (classmethod, staticmethod)):
        member = member.__func__
    return member if inspect.isfunction(member) else None

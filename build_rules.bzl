"""The project's own rules: the import name of the library, and tests that pytest runs."""

load("@rules_python//python:defs.bzl", "py_test")

def _import_folder_impl(ctx):
    links = {
        ctx.attr.folder + "/" + file.short_path: file
        for file in ctx.files.srcs
        if file.extension in ["py", "typed"]
    }
    return [DefaultInfo(runfiles = ctx.runfiles(root_symlinks = links))]

import_folder = rule(
    implementation = _import_folder_impl,
    doc = """Puts the library under its import name.

    The root of the repository is the package `lockstep`, yet Bazel keeps its files in a folder
    named after the workspace. This rule links them into a folder `lockstep` beside it, which is
    on Python's path.
    """,
    attrs = {
        "folder": attr.string(mandatory = True),
        "srcs": attr.label_list(allow_files = True, mandatory = True),
    },
)

def pytest_test(name, srcs, deps = [], data = [], size = "small", **kwargs):
    """A py_test whose file is run by pytest, with the settings of setup.cfg.

    Args:
      name: Name of the target.
      srcs: The one test file.
      deps: What the file imports.
      data: What the test reads.
      size: Bazel's size of the test.
      **kwargs: Handed on to py_test.
    """
    runner = "//tests/testing:run_pytest.py"
    py_test(
        name = name,
        size = size,
        srcs = srcs + [runner],
        main = runner,
        args = ["$(location %s)" % srcs[0]],
        data = data + ["//:setup.cfg"],
        deps = deps + ["//tests:conftest"],
        # No made-up `__init__.py`: test folders are no packages.
        legacy_create_init = 0,
        **kwargs
    )

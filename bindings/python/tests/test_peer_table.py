"""The page about peers says what the tests assert."""

from pathlib import Path

import peers

PAGE = Path(__file__).parents[3] / "docs" / "peers.md"


def test_the_tables_of_the_page_are_those_of_the_tests():
    conduct, types = peers.tables().strip().split("\n\n")
    page = PAGE.read_text()
    assert conduct in page and types in page, "print them with `python bindings/python/tests/peers.py`"


def test_every_peer_is_named_with_the_version_that_was_tested():
    environments = Path(__file__).parents[3] / "tests" / "python-env"
    # MXNet's environment pins an older NumPy; the one that counts comes after it.
    pinned = "".join((environments / name).read_text() for name in ("legacy.in", "other-peers.in", "small.in", "all.in"))
    versions = dict(line.split(";")[0].split("==") for line in pinned.splitlines() if "==" in line)
    page = PAGE.read_text()
    together = ("numpy", "jax[cpu]", "torch", "tensorflow-cpu", "apache-tvm-ffi", "pyarrow", "onnxruntime")
    for package in (*together, "warp-lang", "paddlepaddle", "mlx", "openvino", "nanobind", "mxnet"):
        assert f"{package} {versions[package]}" in page, f"docs/peers.md does not say {package} {versions[package]}"

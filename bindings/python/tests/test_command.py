"""The command of the package: `estafette`, and `python -m estafette`."""

import subprocess
import sys

import estafette as est


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "estafette", *arguments], capture_output=True, text=True, timeout=60)


def test_the_command_reports_a_trace(eng, tmp_path):
    path = tmp_path / "run.pftrace"
    with est.record(path):
        eng.submit(lambda: None, name="step").wait()
    done = command("report", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 operation" in done.stdout


def test_the_command_lists_devices_and_says_its_version():
    assert command("devices").stdout.splitlines()[1].startswith("cpu:0 ")
    assert command("--version").stdout == f"estafette {est.__version__}\n"


def test_what_is_wrong_ends_with_code_2():
    for arguments in (["bench"], ["report", "no-such-file"]):
        done = command(*arguments)
        assert done.returncode == 2 and arguments[-1] in done.stderr, done


def test_a_command_of_the_rust_package_is_said_to_be_there():
    done = command("bench", "chain")
    assert done.returncode == 2 and "`bench`" in done.stderr and "cargo run" in done.stderr, done


def test_the_help_names_every_subcommand():
    listed = command("--help").stdout
    for name in ("devices", "demo", "report", "config", "merge", "observe", "top"):
        assert name in listed
        assert command(name, "--help").returncode == 0, name
        helped = command("help", name)
        assert helped.returncode == 0 and f"estafette {name}" in helped.stdout.replace("python -m ", ""), helped

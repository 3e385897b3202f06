"""Python cells by the program that runs them, in real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from activities import cells
from activities.cells import Report
from perdure.job_messages import FailingLine, JobSpec
from tests.waiting import until


@dataclass
class Ended:
    """A cell that has ended."""

    code: int
    stdout: str
    stderr: str
    report: Report | None


class Cell:
    """A cell that runs in a folder of its own."""

    def __init__(self, folder: Path, code: str, **more: Any) -> None:
        self._report = folder / "report.json"
        context = more.pop("context", {"results": {}, "metadata": {}})
        held = {signal.SIGINT} if more.pop("hold_sigint", False) else set()
        args = more.pop("args", None)
        spec = JobSpec(code=code, **more)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
        try:
            self.process = subprocess.Popen(
                cells.argv_here(),
                cwd=folder,
                env={"PATH": os.environ["PATH"]},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.out = b""
        assert self.process.stdin
        self.process.stdin.write(cells.input_of(spec, args, context, [str(self._report)]))
        self.process.stdin.close()
        self.process.stdin = None

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    async def prints(self, text: str) -> None:
        """Return once the cell has printed so much."""
        assert self.process.stdout
        os.set_blocking(self.process.stdout.fileno(), False)

        def has_come() -> bool:
            assert self.process.stdout
            self.out += self.process.stdout.read(65536) or b""
            return text.encode() in self.out

        await until(has_come, f"{text!r} is printed")
        os.set_blocking(self.process.stdout.fileno(), True)

    def end(self) -> Ended:
        out, err = self.process.communicate(timeout=30)
        out = self.out + out
        report = cells.take_report(self._report)
        return Ended(self.process.returncode, out.decode(), err.decode(), report)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    return lambda code, **more: Cell(tmp_path, code, **more).end()


@pytest.mark.parametrize(
    ("code", "echoed"),
    [
        ("1 + 1", "2\n"),
        ("x = 'é'\nx", "'é'\n"),
        ("print('a')\nNone", "a\n"),
        ("x = 3", ""),
        ("", ""),
        ("from __future__ import annotations\n[1]", "[1]\n"),
        ("def f(): return 5\nf();", "5\n"),
        ("__name__", "'__main__'\n"),
    ],
)
def test_b7_the_value_of_a_last_expression_is_echoed(run: Any, code: str, echoed: str) -> None:
    assert run(code) == Ended(0, echoed, "", Report())


def test_a_traceback_has_the_cells_own_lines_and_none_of_ours(run: Any) -> None:
    ended = run("def f(x):\n    return 1 / x  # here\n\nprint('before')\nf(0)\n")
    assert ended.stdout == "before\n"
    assert ended.code == 1
    assert ended.stderr.splitlines()[:4] == [
        "Traceback (most recent call last):",
        '  File "<cell>", line 5, in <module>',
        "    f(0)",
        '  File "<cell>", line 2, in f',
    ]
    assert "cell_runner" not in ended.stderr
    assert ended.report == Report(
        "ZeroDivisionError: division by zero", FailingLine(2, "    return 1 / x  # here")
    )


def test_an_error_in_a_library_is_told_by_the_cells_line(run: Any) -> None:
    report = run("import json\n\njson.loads('{')").report
    assert report.error.startswith("JSONDecodeError: ")
    assert report.failing_line == FailingLine(3, "json.loads('{')")


def test_a_cell_that_is_no_python_fails_with_its_line(run: Any) -> None:
    ended = run("x = 1\nif x\n    y\n")
    assert ended.report.error.startswith("SyntaxError: ")
    assert ended.report.failing_line == FailingLine(2, "if x")
    assert "cell_runner" not in ended.stderr


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [
        ("exit()", 0, ""),
        ("import sys; sys.exit(0)", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("import sys; sys.exit('no data')", 1, "no data\n"),
        ("import os; os._exit(7)", 7, ""),
    ],
)
def test_b20_an_exit_is_caught_and_counts_by_its_code(
    run: Any, code: str, exit_code: int, said: str
) -> None:
    ended = run(code)
    assert (ended.code, ended.stderr) == (exit_code, said)
    assert ended.report in (Report(), None)


def test_a_keyboard_interrupt_of_the_codes_own_is_an_ordinary_error(run: Any) -> None:
    ended = run("raise KeyboardInterrupt('mine')")
    assert ended.report == Report(
        "KeyboardInterrupt: mine", FailingLine(1, "raise KeyboardInterrupt('mine')")
    )
    assert ended.code == 1


async def test_b20_a_delivered_interrupt_is_told_as_such(tmp_path: Path) -> None:
    cell = Cell(tmp_path, "import time\nprint('now')\nwhile True:\n    time.sleep(9)")
    await cell.prints("now\n")
    cell.interrupt()
    ended = cell.end()
    assert ended.report == Report("Interrupted", FailingLine(4, "    time.sleep(9)"), True)
    assert ended.code == 130
    told = ended.stderr.splitlines()
    assert told[0] == "Traceback (most recent call last):"
    assert [line.strip() for line in told[1:3]] == [
        'File "<cell>", line 4, in <module>', "time.sleep(9)",
    ]  # fmt: skip
    assert told[-1] == "KeyboardInterrupt"
    assert "_interrupt" not in ended.stderr, "the cell's own frames, and no other"


def test_bd2_an_interrupt_while_it_boots_is_the_cells(tmp_path: Path) -> None:
    for _ in range(5):
        cell = Cell(tmp_path, "while True: pass", hold_sigint=True)
        cell.interrupt()
        ended = cell.end()
        assert ended.report
        assert ended.report.error == "Interrupted"
        assert ended.report.interrupted


async def test_bd4_each_interrupt_raises_again_in_a_cell_that_swallows_them(
    tmp_path: Path,
) -> None:
    code = """
import time
for n in range(3):
    try:
        print("round", n)
        time.sleep(600)
    except KeyboardInterrupt:
        pass
print("over")
"""
    cell = Cell(tmp_path, code)
    for n in range(3):
        await cell.prints(f"round {n}\n")
        cell.interrupt()
    ended = cell.end()
    assert ended.stdout.endswith("over\n")
    assert ended.report == Report("Interrupted", None, True)


async def test_an_error_on_the_way_out_of_an_interrupt_is_told(tmp_path: Path) -> None:
    code = "import time\ntry:\n    print('now')\n    time.sleep(60)\nfinally:\n    1 / 0"
    cell = Cell(tmp_path, code)
    await cell.prints("now\n")
    cell.interrupt()
    ended = cell.end()
    report = ended.report
    assert report
    assert ended.stderr.count("Traceback") == 2
    assert "_interrupt" not in ended.stderr
    assert (report.error, report.interrupted) == ("ZeroDivisionError: division by zero", True)
    assert report.failing_line == FailingLine(6, "    1 / 0")


async def test_threads_of_a_cell_are_waited_for_and_do_not_deafen_it(tmp_path: Path) -> None:
    code = """
import threading, time
def work():
    print("working")
    time.sleep(600)
threading.Thread(target=work).start()
"""
    cell = Cell(tmp_path, code)
    await cell.prints("working\n")
    cell.interrupt()

    def is_told() -> bool:
        return (tmp_path / "report.json").exists()

    await until(is_told, "the interrupt is told")
    cell.interrupt()  # the interpreter itself still waits for the thread
    assert cell.end().report == Report("Interrupted", None, True)


def test_an_entrypoint_is_called_as_that_of_a_python_step(run: Any) -> None:
    code = "def main(call):\n    return call['args'], call['results'], call['context']['metadata']"
    context = {"results": {"a": 1}, "metadata": {"k": "v"}}
    ended = run(code, entrypoint="main", args={"n": 2}, context=context)
    assert ended == Ended(0, "({'n': 2}, {'a': 1}, {'k': 'v'})\n", "", Report())


def test_an_entrypoint_may_be_async_and_must_be_there(run: Any) -> None:
    assert run("async def go(call): return 7", entrypoint="go").stdout == "7\n"
    ended = run("x = 1", entrypoint="go")
    assert ended.report.error == "NoEntrypoint: the cell defines no function 'go'"
    assert ended.stderr == "the cell defines no function 'go'\n"


def test_c31_a_cell_reads_end_of_file_or_what_it_is_given(run: Any) -> None:
    read = "import sys\nsys.stdin.read()"
    assert run(read).stdout == "''\n"
    assert run(read, stdin="first\nsecond é").stdout == "'first\\nsecond é'\n"
    assert run("input()").report.error == "EOFError: EOF when reading a line"


def test_half_characters_and_bytes_can_be_printed(run: Any) -> None:
    ended = run(
        "print('\\ud800')\nimport sys\nsys.stderr.write('\\udfff')\nraise OSError('\\ud800')"
    )
    assert ended.stdout == "\\ud800\n"
    assert ended.stderr.startswith("\\udfff")
    assert ended.report.error == "OSError: ?"


def test_a_fork_that_comes_back_does_not_tell_the_cells_end(run: Any) -> None:
    code = """
import os
pid = os.fork()
if pid == 0:
    raise ValueError("of the child")
os.waitpid(pid, 0)
"the parent's"
"""
    ended = run(code)
    assert ended.stdout == '"the parent\'s"\n'
    assert "ValueError: of the child" in ended.stderr
    assert ended.report == Report()


def test_a_cell_sees_its_directory_and_nothing_of_ours(run: Any, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("VALUE = 5")
    assert run("import helper\nhelper.VALUE").stdout == "5\n"
    assert "activities" not in run("import sys\n[p for p in sys.path if 'activities' in p]").stdout
    assert run("import sys\nsys.argv").stdout == "['<cell>']\n"


def test_it_runs_under_the_oldest_python_it_names() -> None:
    import ast

    source = cells.RUNNER.read_text("utf-8")
    assert len(source.encode()) < 100_000, "it is one word of a command line in a container"
    ast.parse(source, feature_version=(3, 8))
    assert sys.version_info >= (3, 8)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"error": 1}', b'{"error": null, "failing_line": {}, "interrupted": 0}'],
)
def test_what_is_no_report_is_none(content: bytes) -> None:
    assert cells.parsed(content) is None

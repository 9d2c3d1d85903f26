import re
from pathlib import Path

import pytest

from vm import console

SAMPLES = Path(__file__).parent / "samples"


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("4,WARNING: CPU: 0 PID: 77 at net/core/stream.c:212 sk_stream_kill_queues+0xf1/0x100", True),
        ("1,BUG: kernel NULL pointer dereference, address: 0000000000000010", True),
        ("3,rcu: INFO: rcu_sched self-detected stall on CPU", True),
        ("4,WARNING: possible circular locking dependency detected", True),
        ("6,Memory cgroup out of memory: Killed process 77 (python)", True),
        ("4,perpatch: kernel messages were lost, the ring overran", True),
        ("6,TCP: out of memory -- consider tuning tcp_mem", False),
        ("6,IPv6: ADDRCONF(NETDEV_CHANGE): veth0: link becomes ready", False),
    ],
)
def test_splats(line: str, bad: bool) -> None:
    assert bool(console.splats([line])) is bad


def test_a_panic_is_told_in_one_line_with_its_first_cause() -> None:
    why = console.death(console.read(SAMPLES / "panic-5.10.console"))
    assert why == "Oops: 0002 [#1] SMP NOPTI (panic: Fatal exception)" or (why and why.startswith("BUG: "))


def test_the_same_crash_has_the_same_fingerprint_wherever_it_is_met() -> None:
    text = console.read(SAMPLES / "oops-5.10.console")
    other = re.sub(r"\bffff[0-9a-f]{12}\b", "ffff888012345678", text).replace("PID: ", "PID: 9")
    assert other != text
    assert len(console.fingerprint(text)) == 8
    assert console.fingerprint(other) == console.fingerprint(text)
    frame = re.search(r"^ (\w+)\+0x", text.partition("Call Trace:")[2], re.M)
    assert frame
    elsewhere = text.replace(f" {frame[1]}+", " tcp_sendmsg_locked+")
    assert console.fingerprint(elsewhere) != console.fingerprint(text)
    assert console.fingerprint("all is well\n") == ""


def test_a_console_without_a_panic_tells_none() -> None:
    assert console.death("WARNING: something\nall is well\n") is None


def test_what_a_terminal_or_xml_would_act_on_is_dropped(tmp_path: Path) -> None:
    log = tmp_path / "console"
    log.write_bytes(b"a\x1b[31mred\x1b[0m\x00\x07b\xff\n")
    assert console.read(log).replace("�", "") == "aredb\n"

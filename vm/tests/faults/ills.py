"""Cases that misbehave on purpose, each in one way; they run in a guest, and test_guest.py says what they must come to.

They need the flavour faults: drivers/misc/lkdtm crashes, warns and hangs as its file is told.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

BUSY = 1 << 20


def crash(how: str) -> None:
    Path("/sys/kernel/debug/provoke-crash/DIRECT").write_text(how)


def sysctl(name: str, value: object) -> None:
    Path("/proc/sys", name.replace(".", "/")).write_text(str(value))


def wire(request: pytest.FixtureRequest):
    return request.config.pluginmanager.get_plugin("perpatch-reporter").wire


def in_child(work) -> int:
    """What became of a child that does it."""
    if pid := os.fork():
        return os.waitpid(pid, 0)[1]
    work()
    os._exit(0)


def eat(size: int = 4 << 30) -> list[bytearray]:
    """Touch so many bytes: more than there are."""
    eaten = []
    while len(eaten) < size >> 24:
        eaten.append(bytearray(b"x") * (16 << 20))
    return eaten


def test_before():
    pass


def test_panic():
    crash("PANIC")


@pytest.fixture
def panics():
    crash("PANIC")


def test_panic_in_a_fixture(panics):
    pass


def test_oops():
    crash("EXCEPTION")


def test_oops_that_the_kernel_survives():
    sysctl("kernel.panic_on_oops", 0)
    assert in_child(lambda: crash("EXCEPTION"))
    sysctl("kernel.panic_on_oops", 1)


def test_bug():
    crash("BUG")


def test_warning():
    crash("WARNING")


def test_interrupts_off():
    crash("HARDLOCKUP")


def test_soft_lockup():
    sysctl("kernel.watchdog_thresh", 1)
    crash("LOOP")  # SOFTLOCKUP's loop has a PAUSE, at which virtual time nearly stands


def test_rcu_stall():
    Path("/sys/module/rcupdate/parameters/rcu_cpu_stall_timeout").write_text("3")
    sysctl("kernel.watchdog", 0)
    for _ in range(20):  # a grace period has to be under way
        Path("/proc/self/stat").read_text()
        time.sleep(0.001)
    crash("LOOP")


def test_hung_task():
    sysctl("kernel.hung_task_timeout_secs", 1)
    crash("HUNG_TASK")


def test_spins():
    while True:
        pass


def test_sleeps_for_ever():
    while True:
        time.sleep(3600)


def test_ignores_sigterm_and_has_children():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.fork()
    os.fork()
    while True:
        time.sleep(0.01)


def test_fork_bomb():
    sysctl("kernel.threads-max", 300)
    while True:
        try:
            os.fork()
        except OSError:
            sum(range(1000))


def test_sets_the_clock():
    time.clock_settime(time.CLOCK_REALTIME, 4e9)


def test_oom_kills_the_session():
    eat()


def test_oom_kills_a_child():
    Path("/proc/self/oom_score_adj").write_text("-1000")

    def work():
        Path("/proc/self/oom_score_adj").write_text("1000")
        eat()

    assert os.WTERMSIG(in_child(work)) == signal.SIGKILL


def test_oom_finds_nothing_to_kill():
    for score in Path("/proc").glob("[0-9]*/oom_score_adj"):
        score.write_text("-1000")
    eat()


def test_memory_error():
    bytearray(1 << 50)


def test_disk_full():
    with Path("/tmp/full").open("wb") as file:
        while True:
            file.write(bytes(BUSY))


def test_switches_off():
    subprocess.run(["poweroff", "-f"], check=True)
    time.sleep(60)


def test_reboots():
    subprocess.run(["reboot", "-f"], check=True)
    time.sleep(60)


def test_kills_the_session():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("status", [0, 1, 22, 124, 255])
def test_exits(status):
    os._exit(status)


def test_ends_pytest():
    pytest.exit("enough")


def test_floods_the_console():
    with Path("/dev/console").open("wb") as console:
        for _ in range(2 << 10):
            console.write(b"perpatch is silent, the console is not\n" * 26)


def test_floods_the_kernel_log():
    sysctl("kernel.printk_devkmsg", "on\n")
    with Path("/dev/kmsg").open("wb", buffering=0) as log:
        for n in range(20000):
            log.write(b"<6>line %d of a flood\n" % n)


def test_says_what_no_terminal_likes():
    print("\x1b[2J\x00\x07\udcff")
    os.write(1, b"\xff\xfe\x1b]0;title\x07\n")
    raise AssertionError("\x1b[31m\x00]]>\udcff & <red>")


def test_line_cut_in_two(request):
    os.write(wire(request).fd, b'{"n": 7, "rep\n')


def test_line_repeated(request):
    wire(request).count -= 1


def test_lines_out_of_order(request):
    wire(request).count += 1


def test_line_that_is_not_json(request):
    os.write(wire(request).fd, b"\x00\xffPASS\n")


def test_line_without_an_end(request):
    for _ in range(70):
        os.write(wire(request).fd, b"x" * BUSY)


def test_says_pass_for_itself(request):
    name = request.node.nodeid
    wire(request).send({"end": name, "kmsg": [], "seconds": 0.1})
    raise AssertionError("it failed all the same")


def test_closes_the_port(request):
    os.close(wire(request).fd)


def test_after():
    pass

from selftests.lib import interval

INTERRUPTS = """           CPU0       CPU1
  0:         32          0   IO-APIC   2-edge      timer
  2:          0          0    XT-PIC      cascade
 24:        157          3   PCI-MSI 49152-edge      virtio0-req.0
LOC:      11850      11900   Local timer interrupts
ERR:          0
"""


def test_only_devices_count() -> None:
    assert interval.interrupts(INTERRUPTS) == {"24 PCI-MSI 49152-edge      virtio0-req.0": 160}


def test_the_clock_is_virtual_where_the_tsc_counts_instructions() -> None:
    assert interval.virtual("model name\t: QEMU\ncpu MHz\t\t: 999.951\n")
    assert interval.virtual("no frequency here\n")
    assert not interval.virtual("cpu MHz\t\t: 2445.404\n")
    assert not interval.virtual("cpu MHz\t\t: 0.000\n")

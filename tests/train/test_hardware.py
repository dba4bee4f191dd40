from types import SimpleNamespace

import jax
import pytest

from minigpt.train.hardware import peak_flops


@pytest.fixture
def device_kind(monkeypatch):
    def set_kind(kind):
        monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind=kind)])

    return set_kind


@pytest.mark.parametrize(
    ("kind", "bfloat16", "float32"),
    [
        ("NVIDIA H200", 989e12, 495e12),
        ("NVIDIA GH200 480GB", 989e12, 495e12),
        ("NVIDIA H100 80GB HBM3", 989e12, 495e12),
        ("NVIDIA H100 PCIe", 756e12, 378e12),
        ("NVIDIA H100 NVL", 835e12, 417e12),
        ("NVIDIA A100-SXM4-40GB", 312e12, 156e12),
        ("NVIDIA A100 80GB PCIe", 312e12, 156e12),
        ("NVIDIA L40S", 362e12, 183e12),
        ("NVIDIA L4", 121e12, 60e12),
        ("TPU v4", 275e12, None),
        ("TPU v5 lite", 197e12, None),
        ("TPU v5", 459e12, None),
        ("TPU v6 lite", 918e12, None),
    ],
)
def test_known_devices_have_a_peak(device_kind, kind, bfloat16, float32):
    device_kind(kind)
    for dtype, expected in (("bfloat16", bfloat16), ("float32", float32)):
        peak, source = peak_flops(None, dtype)
        assert peak == expected
        assert dtype in source
        assert ("data sheet" in source) == (expected is not None)


@pytest.mark.parametrize("kind", ["cpu", "Tesla T4", "NVIDIA A10G", "NVIDIA L40", "TPU v99"])
def test_unknown_devices_have_none_and_say_what_to_do(device_kind, kind):
    device_kind(kind)
    assert peak_flops(None, "bfloat16") == (
        None,
        f"no published bfloat16 peak for device {kind!r}; set --train.peak-flops",
    )


@pytest.mark.parametrize("kind", ["NVIDIA H100 PCIe", "cpu"])
def test_a_configured_peak_wins(device_kind, kind):
    device_kind(kind)
    assert peak_flops(2e12, "bfloat16") == (2e12, "train.peak_flops")

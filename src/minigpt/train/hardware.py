"""Peak rates of accelerators, for model FLOPs utilisation."""

import re

import jax

# Dense FLOP/s of one device from the makers' data sheets, without sparsity. float32 is the rate
# of jax's default there: TF32 on NVIDIA GPUs that have it, bfloat16 passes on TPUs.
# The first name in the device kind counts; "L4" is not in "NVIDIA L40".
_PEAK_FLOPS: dict[str, dict[str, float]] = {
    "H200": {"bfloat16": 989e12, "float32": 495e12},
    "H100 PCIe": {"bfloat16": 756e12, "float32": 378e12},
    "H100 NVL": {"bfloat16": 835e12, "float32": 417e12},
    "H100": {"bfloat16": 989e12, "float32": 495e12},
    "A100": {"bfloat16": 312e12, "float32": 156e12},
    "L40S": {"bfloat16": 362e12, "float32": 183e12},
    "L4": {"bfloat16": 121e12, "float32": 60e12},
    "TPU v4": {"bfloat16": 275e12},
    "TPU v5 lite": {"bfloat16": 197e12},
    "TPU v5": {"bfloat16": 459e12},  # jax's name of v5p
    "TPU v6 lite": {"bfloat16": 918e12},
}


def peak_flops(configured: float | None, dtype: str) -> tuple[float | None, str]:
    """FLOP/s of one device, and where the number is from (or why there is none)."""
    if configured is not None:
        return configured, "train.peak_flops"
    kind = jax.devices()[0].device_kind
    for name, rates in _PEAK_FLOPS.items():
        if re.search(rf"{name}\b", kind) and dtype in rates:
            return rates[dtype], f"data sheet of {name}, dense {dtype}"
    return None, f"no published {dtype} peak for device {kind!r}; set --train.peak-flops"

"""Long rows and many rows: shared memory, clusters, more than 2^16 rows and 2^31 elements."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.errors import UsageError
from ptxkit.targets import Target
from ptxkit.workload import execute, registry
from ptxkit.workload.build import build

FORWARD = ["fused_l2norm", "layernorm", "rmsnorm", "softmax", "scale_mask_softmax", "layernorm_quantize"]
GRADIENTS = ["layernorm_backward", "rmsnorm_backward"]
f32 = np.float32


def of(name, rows, cols, **options):
    return registry.get(name)(rows=rows, cols=cols, **options)


def check(device, workload, tile=None, inputs=None):
    """Run ``vectorized``, assert that it is verified, and return its launches."""
    case = execute.Case(workload, device, inputs=inputs)
    variant = workload.variant("vectorized")
    result = execute.run(case, variant, None, tile, explicit=True)
    assert result.verdict.verified, f"{workload.name} {result.tile}: {result.verdict.worst}"
    return variant.launches(workload, result.tile)


def with_extremes(workload, key):
    """Inputs with rows of tiny, huge and ordinary values, and of values far from 0.

    The sum of score and mask is rounded; the exponential turns half a unit in its last place into a relative error, so scores
    are moved less far than other inputs.
    """
    inputs = workload.inputs(np.random.default_rng(1))
    x = inputs[key]
    x[0] *= f32(1e-25)
    x[1] *= f32(1e25)
    x[2] += f32(100 if key == "s" else 1e5)
    return inputs


def tile_of(name, staged):
    return {"THREADS": 128, "VECTORS": 1, "CLUSTER": 2, "STAGED": staged}


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("cols", [5000, 5001])
@pytest.mark.parametrize("name", FORWARD)
def test_parts_of_rows_of_any_scale(device, name, cols, staged):
    workload = of(name, 4, cols)
    inputs = with_extremes(workload, "x" if name != "scale_mask_softmax" else "s")
    (launch,) = check(device, workload, tile_of(name, staged), inputs)
    assert launch.kernel.endswith("_streamed")
    assert bool(launch.shared) == staged


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", FORWARD[1:])
def test_parts_of_rows_of_two_bytes(device, name, dtype):
    check(device, of(name, 3, 6000, dtype=dtype), tile_of(name, True))


@pytest.mark.parametrize("name", [*FORWARD, *GRADIENTS])
def test_the_longest_rows(device, name):
    launches = check(device, of(name, 1, 262_144))
    assert launches[0].cluster == (8, 1, 1)


@pytest.mark.parametrize("name", FORWARD)
def test_a_long_row_that_no_vector_divides(device, name):
    check(device, of(name, 1, 100_003))


@pytest.mark.parametrize("name", [*FORWARD, *GRADIENTS])
def test_more_rows_than_fit_in_sixteen_bits(device, name):
    check(device, of(name, 70_001, 3))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(("rows", "cols"), [(8300, 262_144), (600_000, 3600)])
def test_more_elements_than_32_bits_count(rows, cols):
    """The last rows begin past element 2^31; every kernel reads and writes rows as this one does."""
    from ptxkit.runtime.device import device as open_device

    device = open_device("gpu")
    workload = of("fused_l2norm", rows, cols)
    if device.memory_bytes < 9 * rows * cols:
        pytest.skip("too little device memory")
    (step,) = build(workload, workload.variant("vectorized"), device.target).steps
    launch = step.launch
    kernel = device.load(step.image)[launch.entry]
    host = np.zeros((rows, cols), f32)
    host[-100:] = np.random.default_rng(0).uniform(-1, 1, (100, cols))
    named = {"x": device.upload(host), "y": device.empty((rows, cols), f32), "eps": f32(1e-12)}
    arguments = [named[a] if isinstance(a, str) else np.int32(a) for a in launch.args]
    kernel.prepare(*arguments, grid=launch.grid, block=launch.block, shared=launch.shared, cluster=launch.cluster)()
    device.synchronize()
    y = named["y"].numpy()
    expected = of("fused_l2norm", 100, cols).reference(host[-100:], f32(1e-12))["y"]
    np.testing.assert_allclose(y[-100:], expected, rtol=1e-6, atol=1e-9)
    assert not y[:-100:1000].any()


def test_a_target_with_little_shared_memory_reads_again():
    workload = of("layernorm", 2, 30_000)
    variant = workload.variant("vectorized")
    assert build(workload, variant, Target.parse("sm_75")).steps[0].launch.shared <= 64 * 1024
    with pytest.raises(UsageError, match="bytes of shared memory"):
        build(
            workload,
            variant,
            Target.parse("sm_75"),
            {"STAGED": "True", "CLUSTER": "1", "THREADS": "256", "VECTORS": "1"},
        )

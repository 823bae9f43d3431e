"""The five objectives, the schedules, and which timesteps are visited."""

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler, FlowMatchEulerDiscreteScheduler
from hypothesis import given
from hypothesis import strategies as st

from pixalign.diffusion.objectives import OBJECTIVES, per_step
from pixalign.diffusion.schedule import DiscreteSchedule, FlowSchedule, Steps
from pixalign.diffusion.timesteps import STRATEGIES, positions
from tiny import SD_NOISE as SD


def sd_schedule() -> DiscreteSchedule:
    return DiscreteSchedule(DDPMScheduler(**SD).alphas_cumprod)


def smooth_steps(generator: torch.Generator, power: float, count: int) -> Steps:
    """alpha = 1 - t^power, sigma = t, with analytic slopes: variance need not be preserved."""
    t = torch.rand(count, generator=generator, dtype=torch.float64) * 0.9 + 0.05
    alpha, alpha_slope = 1 - t**power, -power * t ** (power - 1)
    return Steps(t, alpha, t, alpha_slope, 2 * (alpha_slope / alpha - 1 / t))


on_smooth_schedules = given(
    seed=st.integers(0, 2**31),
    power=st.floats(0.3, 3.0),
    objective=st.sampled_from(list(OBJECTIVES)),
)


@on_smooth_schedules
def test_objectives_are_weighted_epsilon_errors(seed, power, objective):
    """Both routes to Eq. 2, on random smooth schedules that need not preserve variance."""
    generator = torch.Generator().manual_seed(seed)
    steps, row = smooth_steps(generator, power, 6), OBJECTIVES[objective]
    x, noise, error = torch.randn(3, 6, 2, 4, 5, generator=generator, dtype=torch.float64)
    z, target = steps.noised(x, noise), row.target(x, noise, steps)
    output = target + 0.1 * error
    estimate = row.to_epsilon(output, z, steps)

    native = (output - target).square().flatten(1).sum(1) / row.omega(steps)
    converted = (estimate - noise).square().flatten(1).sum(1)
    torch.testing.assert_close(native, -steps.lambda_slope * converted, rtol=1e-8, atol=0)


@on_smooth_schedules
def test_both_estimates_make_up_the_noised_latents(seed, power, objective):
    """alpha x + sigma eps = z for whatever the network says."""
    generator = torch.Generator().manual_seed(seed)
    steps, row = smooth_steps(generator, power, 4), OBJECTIVES[objective]
    z, output = torch.randn(2, 4, 2, 3, 3, generator=generator, dtype=torch.float64)

    x, noise = (turn(output, z, steps) for turn in (row.to_sample, row.to_epsilon))

    torch.testing.assert_close(steps.noised(x, noise), z, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(row.target(x, noise, steps), output, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_perfect_output_gives_the_noise(objective):
    schedule = FlowSchedule() if objective == "flow" else sd_schedule()
    steps = schedule.at_positions(positions("even", 5))
    x, noise = torch.randn(2, 5, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    output = OBJECTIVES[objective].target(x, noise, steps)

    found = OBJECTIVES[objective].to_epsilon(output, steps.noised(x, noise), steps)

    torch.testing.assert_close(found, noise, atol=2e-4, rtol=1e-3)


def test_noise_and_velocity_agree_with_diffusers():
    scheduler, schedule = DDPMScheduler(**SD), sd_schedule()
    x, noise = torch.randn(2, 3, 4, 5, 6)
    indices = [0, 437, 999]
    steps = schedule.at_indices(indices)

    expected = scheduler.add_noise(x, noise, torch.tensor(indices))
    velocity = scheduler.get_velocity(x, noise, torch.tensor(indices))

    torch.testing.assert_close(steps.noised(x, noise), expected)
    torch.testing.assert_close(OBJECTIVES["velocity"].target(x, noise, steps), velocity)


def test_flow_table_is_the_schedulers_from_the_lowest_sigma_up():
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    steps = FlowSchedule(shift=3.0).at_indices(range(1000))

    np.testing.assert_allclose(
        steps.sigma[:-1], scheduler.sigmas.flip(0)[:-1].double(), rtol=0, atol=1e-6
    )
    torch.testing.assert_close(steps.time, 1000 * steps.sigma)
    assert steps.sigma[20] == pytest.approx(0.06, abs=5e-3)
    assert steps.sigma[200] == pytest.approx(0.43, abs=5e-3)


def test_flow_slopes_are_analytic():
    t = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    steps = FlowSchedule().at_positions(t)

    def log_snr(t):
        return 2 * torch.log((1 - t) / t)

    numeric = (log_snr(t + 1e-6) - log_snr(t - 1e-6)) / 2e-6
    torch.testing.assert_close(steps.lambda_slope, numeric, rtol=1e-6, atol=0)


def test_likelihood_weight_of_the_first_timestep():
    """The reason why the default is not -lambda': one timestep would outweigh all others."""
    schedule = sd_schedule()
    released = schedule.at_indices(range(1, 1000, 50)).weights("likelihood", "epsilon")
    midpoints = schedule.at_positions(positions("even", 20)).weights("likelihood", "epsilon")

    assert released[0] == pytest.approx(0.76, abs=0.005)
    assert midpoints[0] == pytest.approx(0.20, abs=0.005)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("weighting", ["uniform", "likelihood", "native"])
def test_weights_are_a_distribution(objective, weighting):
    steps = FlowSchedule().at_positions(positions("even", 7))
    weights = steps.weights(weighting, objective)

    assert weights.sum() == pytest.approx(1)
    assert (weights > 0).all()


def test_native_weights_give_the_training_loss():
    steps = FlowSchedule().at_positions(positions("even", 5))
    weights = steps.weights("native", "flow")
    flow_over_epsilon = 1 / (1 - steps.sigma) ** 2

    torch.testing.assert_close(weights, flow_over_epsilon / flow_over_epsilon.sum())
    uniform = steps.weights("uniform", "epsilon")
    torch.testing.assert_close(steps.weights("native", "epsilon"), uniform)


def test_midpoints():
    even, small = (positions("even", 20), positions("small", 10))
    assert sd_schedule().at_positions(even).time.tolist() == list(range(25, 1000, 50))
    assert sd_schedule().at_positions(small).time.tolist() == list(range(10, 210, 20))


@given(
    strategy=st.sampled_from(list(STRATEGIES)), count=st.integers(1, 60), seed=st.integers(0, 99)
)
def test_positions_stay_inside_their_range(strategy, count, seed):
    found = positions(strategy, count, generator=torch.Generator().manual_seed(seed))
    low, high = STRATEGIES[strategy]

    assert len(found) == count
    assert (found >= low).all()
    assert (found <= high).all()
    steps = sd_schedule().at_positions(found)
    assert torch.isfinite(steps.lambda_slope).all()


def test_random_positions_follow_the_generator():
    first, again, other = (
        positions("random", 9, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_zero_terminal_signal_stays_finite():
    scheduler = DDPMScheduler(**SD, rescale_betas_zero_snr=True)
    steps = DiscreteSchedule(scheduler.alphas_cumprod).at_indices([998, 999])

    assert torch.isfinite(steps.lambda_slope).all()
    assert torch.isfinite(steps.weights("likelihood", "velocity")).all()


@pytest.mark.parametrize("indices", [[], [-1], [1000]])
def test_indices_outside_the_schedule_are_refused(indices):
    with pytest.raises(ValueError, match=r"0\.\.999"):
        sd_schedule().at_indices(indices)


def test_per_step_keeps_the_precision_of_its_partner():
    values = torch.ones(2, dtype=torch.float64)
    assert per_step(values, torch.ones(2, 3)).dtype == torch.float32
    assert per_step(values, torch.ones(2, 3, dtype=torch.float64)).dtype == torch.float64
    assert per_step(values, torch.ones(2, 3, dtype=torch.float16)).dtype == torch.float32


# ---- paths ----


@pytest.mark.parametrize("objective", ["epsilon", "velocity", "sample"])
@pytest.mark.parametrize("count", [1, 7, 50])
def test_path_is_ddim_as_diffusers_takes_it(objective, count):
    kinds = {"epsilon": "epsilon", "velocity": "v_prediction", "sample": "sample"}
    scheduler = DDIMScheduler(
        **SD,
        clip_sample=False,
        set_alpha_to_one=False,
        timestep_spacing="trailing",
        prediction_type=kinds[objective],
    )
    scheduler.set_timesteps(count)
    path = sd_schedule().path(count)
    assert path.steps.time.tolist() == scheduler.timesteps.tolist()
    if count == 50:
        assert path.steps.time.tolist() == list(range(999, 0, -20))
        assert path.ends.time.tolist() == [*range(979, 0, -20), 0]
    generator = torch.Generator().manual_seed(0)
    for index, time in enumerate(scheduler.timesteps):
        z, output = torch.randn(2, 2, 4, 3, 3, generator=generator)
        found = path.advance(objective, output, z, index)
        if count != 7:  # diffusers steps by 1000 // 7, we to the next of its own timesteps
            expected = scheduler.step(output, time, z).prev_sample
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        back = path.advance(objective, output, found, index, backwards=True)
        assert torch.isfinite(back).all()


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_path_of_a_flow_is_eulers(shift):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(12)
    path = FlowSchedule(shift).path(12)
    torch.testing.assert_close(path.steps.time.float(), scheduler.timesteps)
    z, output = torch.randn(2, 2, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    for index, time in enumerate(scheduler.timesteps):
        expected = scheduler.step(output, time, z).prev_sample
        found = path.advance("flow", output, z, index)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("objective", ["epsilon", "velocity", "flow"])
def test_the_way_back_is_the_way_there_where_the_network_says_the_same(objective):
    """Of the noise, told the step's own time; a flow says the same all along."""
    schedule = FlowSchedule(3.0) if objective == "flow" else sd_schedule()
    path = schedule.path(10)
    z, noise = torch.randn(2, 2, 4, 3, 3, generator=torch.Generator().manual_seed(1)).double()
    for index in range(1, 9):
        rows = torch.full((2,), index)
        x = OBJECTIVES["epsilon"].to_sample(noise, z, path.steps[rows])
        output = OBJECTIVES[objective].target(x, noise, path.steps[rows])
        there = path.advance(objective, output, z, index)
        if objective == "velocity":  # (eps - sigma z) / alpha
            alpha, sigma = (per_step(v[rows], z) for v in (path.steps.alpha, path.steps.sigma))
            output = (noise - sigma * there) / alpha
        back = path.advance(objective, output, there, index, backwards=True)
        torch.testing.assert_close(back, z)


@pytest.mark.parametrize("count", [0, -1, 1001])
def test_paths_have_between_one_and_all_steps(count):
    for schedule in (sd_schedule(), FlowSchedule()):
        with pytest.raises(ValueError, match=f"steps is {count}; allowed: 1 to 1000"):
            schedule.path(count)

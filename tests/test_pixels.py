"""Statistics of pixels: values worked out by hand on flat pictures, checkerboards and ramps."""

import pytest
import torch

from flowrl import pixels
from flowrl.pixels import blockiness, clipping, colour_entropy, dark_share, edge_energy, luma, saturation


def flat(red: float, green: float, blue: float, side: int = 16) -> torch.Tensor:
    """A picture `[1, 3, side, side]` of one colour."""
    return torch.tensor([red, green, blue]).view(1, 3, 1, 1).expand(1, 3, side, side)


def checkerboard(cell: int = 1, side: int = 16) -> torch.Tensor:
    """Black and white squares of ``cell`` pixels, `[1, 3, side, side]`."""
    index = torch.arange(side) // cell
    return ((index[:, None] + index) % 2).float().expand(1, 3, side, side)


def test_flat_colours():
    """One colour has no edge, no grid and no entropy; its saturation and its luma are those of the colour."""
    colour = flat(0.75, 0.25, 0.5)
    assert saturation(colour).item() == pytest.approx(0.5)
    assert luma(colour)[0, 0, 0].item() == pytest.approx(0.75 * 0.299 + 0.25 * 0.587 + 0.5 * 0.114)
    assert [f(colour).item() for f in (edge_energy, blockiness, clipping, dark_share, colour_entropy)] == [0] * 5


def test_checkerboard_of_single_pixels():
    """Each pixel is 1 from the mean of its neighbours: energy 1. Every value is clipped, half the pixels are dark."""
    board = checkerboard()
    assert saturation(board).item() == 0
    assert edge_energy(board).item() == pytest.approx(1)
    assert clipping(board).item() == 1
    assert dark_share(board).item() == 0.5
    assert blockiness(board).item() == pytest.approx(0)  # neighbours differ by 1 everywhere


def test_checkerboard_of_blocks():
    """Neighbours differ by 1 across the grid of 8 and by 0 elsewhere; on a grid of 4, half the lines are steps."""
    board = checkerboard(cell=8, side=32)
    assert blockiness(board).item() == pytest.approx(1)
    # Of the seven lines of a grid of 4 in 32 pixels three are steps; none of the other 24 places is one.
    assert blockiness(board, period=4).item() == pytest.approx(3 / 7)
    # A grid of 16 has one line, a step; two of the other 30 places are steps.
    assert blockiness(board, period=16).item() == pytest.approx(1 - 2 / 30)


def test_a_step_edge():
    """Both columns beside the step differ by 1/4 from the mean of their neighbours, two of the 14 that count."""
    step = torch.cat([torch.zeros(1, 3, 16, 8), torch.ones(1, 3, 16, 8)], dim=3)
    assert edge_energy(step).item() == pytest.approx(2 / 14 / 16)


def test_a_ramp_has_no_edge():
    """The mean of a linear ramp's neighbours is the pixel itself."""
    ramp = torch.linspace(0, 1, 16).expand(1, 3, 16, 16)
    assert edge_energy(ramp).item() == pytest.approx(0, abs=1e-12)


def test_clipping_counts_channel_values():
    """Red at 1 is clipped, green at 0.5 is not, blue at 0.01 only within a wider margin."""
    colour = flat(1.0, 0.5, 0.01)
    assert clipping(colour).item() == pytest.approx(1 / 3)
    assert clipping(colour, margin=0.02).item() == pytest.approx(2 / 3)


def test_dark_by_luma():
    """Pure blue has a luma of 0.114: dark under 0.2, not under 0.1."""
    blue = flat(0.0, 0.0, 1.0)
    assert dark_share(blue).item() == 0
    assert dark_share(blue, threshold=0.2).item() == 1


def test_entropy_by_hand():
    """Four colours in equal shares are 2 bits, of 9 for 512 cells; all 512 in equal shares are 1. White has a cell."""
    four = torch.stack([flat(*colour, side=2) for colour in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 1)]])
    assert colour_entropy(torch.cat(list(four), dim=3)).item() == pytest.approx(2 / 9)
    levels = (torch.arange(8) + 0.5) / 8
    cube = torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 16, 32)
    assert colour_entropy(cube).item() == pytest.approx(1)


@pytest.mark.parametrize("name", ["luma", "saturation", "clipping", "edge_energy", "blockiness", "dark_share"])
def test_leading_axes(name):
    """A video `[B, F, 3, H, W]` gives what its frames give one by one."""
    videos = torch.rand(2, 3, 3, 16, 16)
    function = getattr(pixels, name)
    torch.testing.assert_close(function(videos).flatten(0, 1), function(videos.flatten(0, 1)))


def test_pictures_too_small():
    """A picture without an inner pixel, or without a line of the grid, cannot be measured."""
    with pytest.raises(ValueError, match="at least 3 x 3 pixels, got 16 x 2"):
        edge_energy(torch.zeros(1, 3, 2, 16))
    with pytest.raises(ValueError, match="at least 9 x 9"):
        blockiness(torch.zeros(1, 3, 8, 8))

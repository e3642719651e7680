"""What blends give on a model that is trained here, and that the guide says what was measured."""

import json

import pytest
import quality
import torch

GUIDE = quality.PICTURES.parent / "reuse.md"


def test_a_share_brings_a_trained_model_near_what_it_says(store):
    torch.set_num_threads(1)
    blend = quality.Measuring(quality.trained(), store)
    *_, (done, found) = quality.quality(blend, quality.drawn_texts(2, 100), quality.TEXT)
    kl = {what: each for what, (each, _) in found.items()}
    assert done == 100
    # Passages have to matter, and what stands in front of them.
    assert 0.1 * kl["left out"] < kl["rotated"] < kl["not rotated"]
    assert kl["deviation 15%"] < 0.75 * min(kl["rotated"], kl["random 15%"]) and kl["deviation 15%"] < 0.3 * kl["left out"]


@pytest.fixture
def figures():
    return json.loads(quality.FIGURES.read_text())


def test_the_guide_says_what_was_measured(figures):
    assert quality.table(figures) in GUIDE.read_text()
    assert all(each["prompts"] >= 100 for each in figures.values())


def test_pictures_are_drawn_from_what_was_measured(figures, tmp_path):
    quality.draw(figures, tmp_path)
    drawn = sorted(tmp_path.iterdir())
    assert len(drawn) == 3
    for picture in drawn:
        assert picture.read_text() == (quality.PICTURES / picture.name).read_text(), f"{picture.name}: draw it again"

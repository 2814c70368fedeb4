"""A source under the keys of what a model holds."""

import pytest
import torch

from spmd.checkpoint._parts import Holding, Part, as_saved
from spmd.checkpoint._parts_source import PartsSource
from spmd.checkpoint._source import Source
from spmd.checkpoint._write import Box

ROWS, WHOLE = 3, (4, 6)


class Tensors(Source):
    """Tensors of the host, which notes down what it is asked for."""

    def __init__(self, tensors):
        self.url = "here"
        self.tensors = tensors
        self.asked = []
        self.kinds = {
            key: (str(t.dtype).removeprefix("torch."), tuple(t.shape))
            for key, t in tensors.items()
        }

    def fill(self, key, regions, *, advance):
        self.asked.append(key)
        for (offset, shape), target in regions:
            box = tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))
            target.copy_(self.tensors[key][box])
            advance(target.nbytes)

    def object(self, key):
        return None

    def objects(self):
        return ()


def stack_of(start, width):
    """Columns of a fused weight in each of three layers."""
    parts = (Part(f"model.l.{i}.w", WHOLE, (0, start), i) for i in range(ROWS))
    return Holding((ROWS, 4, width), tuple(parts), "model.l")


HOLDINGS = {"model.l.*.q": stack_of(0, 4), "model.l.*.k": stack_of(4, 2)}


def saved():
    generator = torch.Generator().manual_seed(0)
    names = [f"model.l.{i}.w" for i in range(ROWS)]
    return {name: torch.randn(WHOLE, generator=generator) for name in names}


def held(tensors):
    stacked = torch.stack([tensors[f"model.l.{i}.w"] for i in range(ROWS)])
    return {"model.l.*.q": stacked[..., :4], "model.l.*.k": stacked[..., 4:]}


def seen(tensors, holdings=HOLDINGS, found=None):
    source = Tensors(tensors)
    known = {k: k for k in tensors if k.startswith("model.")}
    return source, PartsSource(source, holdings, known if found is None else found)


BOXES = [
    ((0, 0, 0), (3, 4, 2)),
    ((1, 1, 0), (2, 2, 2)),
    ((2, 0, 1), (1, 4, 1)),
    ((0, 2, 0), (1, 2, 2)),
]


@pytest.mark.parametrize(("offset", "shape"), BOXES)
@pytest.mark.parametrize("key", HOLDINGS)
def test_boxes_of_pieces_of_layers(key, offset, shape):
    tensors = saved()
    source, view = seen(tensors)
    box = tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))
    want, got = held(tensors)[key][box], torch.empty(shape)
    view.fill(key, [((offset, shape), got)], advance=lambda _: None)
    assert torch.equal(got, want)
    assert len(source.asked) == shape[0]


def test_each_saved_tensor_is_asked_for_once():
    source, view = seen(saved())
    targets = [torch.empty(3, 2, 4) for _ in range(2)]
    regions = [
        (((0, i, 0), (3, 2, 4)), t) for i, t in zip((0, 2), targets, strict=True)
    ]
    view.fill("model.l.*.q", regions, advance=lambda _: None)
    assert source.asked == [f"model.l.{i}.w" for i in range(ROWS)]
    assert torch.equal(torch.cat(targets, 1), held(source.tensors)["model.l.*.q"])


def test_what_it_has():
    _, view = seen({**saved(), "model.head": torch.ones(2), "extra.x": torch.ones(1)})
    assert view.kinds == {
        "model.head": ("float32", (2,)),
        "extra.x": ("float32", (1,)),
        "model.l.*.q": ("float32", (3, 4, 4)),
        "model.l.*.k": ("float32", (3, 4, 2)),
    }
    assert view.is_stack("model.l.*.q") and not view.is_stack("model.head")
    assert view.partly == {} and view.uncut == []


def test_under_another_name():
    """As of tied weights, of which a file has one."""
    tensors = {"model.other": torch.arange(2.0)}
    _, view = seen(tensors, {}, {"model.head": "model.other"})
    assert view.kinds["model.head"] == ("float32", (2,))
    assert torch.equal(view.whole("model.head"), torch.arange(2.0))


@pytest.mark.parametrize("num_rows", [1, 2, 3])
def test_what_is_written_is_what_is_read(num_rows):
    """Boxes of what is held, cut also between rows, cover what is saved."""
    tensors = saved()
    found = {name: torch.full(WHOLE, -1.0) for name in tensors}

    def boxes():
        for key, value in held(tensors).items():
            for row in range(0, ROWS, num_rows):
                for column in (0, 2):
                    data = value[row : row + num_rows, column : column + 2]
                    yield Box(key, tuple(value.shape), (row, column, 0), data)

    for box in as_saved(boxes(), HOLDINGS):
        assert box.shape == WHOLE
        ends = zip(box.offset, box.data.shape, strict=True)
        found[box.key][tuple(slice(o, o + n) for o, n in ends)] = box.data
    for name, value in tensors.items():
        assert torch.equal(found[name], value)


def numbers(*steps):
    keys = [f"optimizer.l.{i}.w.step" for i in range(ROWS)]
    values = map(torch.tensor, steps)
    return {**saved(), **dict(zip(keys, values, strict=True))}


def test_one_number_for_all_layers():
    _, view = seen(numbers(2.0, 2.0, 2.0))
    view.check_numbers()
    assert view.kinds["optimizer.l.*.k.step"] == ("float32", ())
    assert view.whole("optimizer.l.*.k.step").item() == 2.0
    boxes = [Box("optimizer.l.*.q.step", (), (), torch.tensor(2.0))]
    boxes.append(Box("optimizer.l.*.k.step", (), (), torch.tensor(2.0)))
    written = list(as_saved(boxes, HOLDINGS))
    assert [b.key for b in written] == [f"optimizer.l.{i}.w.step" for i in range(ROWS)]
    _, view = seen(numbers(2.0, 2.0, 3.0))
    with pytest.raises(
        ValueError, match=r"l\.0\.w\.step 2\.0 and optimizer\.l\.2\.w\.step 3\.0, but"
    ):
        view.check_numbers()


def test_parameters_of_one_number():
    """Their moments go number by number; counts of steps do not."""
    parts = tuple(Part(f"model.l.{i}.w", (), (), i) for i in range(2))
    holdings = {"model.l.*.w": Holding((2,), parts, "model.l")}
    tensors = {}
    for i in range(2):
        tensors[f"model.l.{i}.w"] = torch.tensor(float(i))
        tensors[f"optimizer.l.{i}.w.exp_avg"] = torch.tensor(float(i))
        tensors[f"optimizer.l.{i}.w.step"] = torch.tensor(5.0)
    _, view = seen(tensors, holdings)
    assert view.whole("optimizer.l.*.w.exp_avg").tolist() == [0.0, 1.0]
    assert view.whole("optimizer.l.*.w.step").item() == 5.0

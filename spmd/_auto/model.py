"""What `auto_plan` looks at in a model: its matrices, its blocks, its tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A module that multiplies [..., in] by its weight.

    Attributes:
        name: Dotted name.
        module: `torch.nn.Linear`, or Hugging Face's Conv1D.
        num_in: Input features.
        num_out: Output features.
        dim_out: The weight's dim of output features.
    """

    name: str
    module: nn.Module
    num_in: int
    num_out: int
    dim_out: int

    @property
    def leaf(self) -> str:
        """Last component of the name."""
        return self.name.rpartition(".")[2]

    @property
    def parent(self) -> str:
        """Name of the module that has it."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model as `auto_plan` sees it.

    Attributes:
        root: The module; only its structure is read.
        matrices: By name.
        blocks: Names of the repeated layers, each with the names of its matrices.
        table: Name of the input embedding; None without one.
        head: Name of the matrix that makes logits over the vocabulary, or None.
    """

    root: nn.Module
    matrices: dict[str, Matrix]
    blocks: dict[str, tuple[str, ...]]
    table: str | None
    head: str | None

    @property
    def kind(self) -> str:
        """The model's class."""
        return type(self.root).__name__


def read_model(root: nn.Module) -> Model:
    """Look at a model.

    Args:
        root: A Hugging Face model, on any device.

    Returns:
        What was found.
    """
    names = {module: name for name, module in root.named_modules()}
    matrices = {m.name: m for m in _matrices(root)}
    blocks = {
        block: tuple(n for n in matrices if n.startswith(f"{block}."))
        for block in _blocks(root)
    }
    table = _called(root, "get_input_embeddings")
    head = _called(root, "get_output_embeddings")
    return Model(
        root,
        matrices,
        {block: own for block, own in blocks.items() if len(own) > 1},
        names.get(table) if isinstance(table, nn.Embedding) else None,
        names.get(head) if head is not None and names.get(head) in matrices else None,
    )


def _called(root: nn.Module, method: str) -> Any:
    """What the model answers; encoders of images have no tables and say so so."""
    try:
        return getattr(root, method)()
    except (AttributeError, NotImplementedError):
        return None


def _matrices(root: nn.Module) -> Iterator[Matrix]:
    for name, module in root.named_modules():
        if isinstance(module, nn.Linear):
            yield Matrix(name, module, module.in_features, module.out_features, 0)
        elif type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
            num_in, num_out = module.get_parameter("weight").shape
            yield Matrix(name, module, num_in, num_out, 1)


def _blocks(root: nn.Module) -> Iterator[str]:
    """Elements of the outermost lists of modules."""
    inside: list[str] = []
    for name, module in root.named_modules():
        if any(name.startswith(f"{one}.") for one in inside):
            continue
        if isinstance(module, nn.ModuleList):
            inside.append(name)
            for key in module._modules:
                yield f"{name}.{key}" if name else key


def build_on_meta(config: Any) -> nn.Module:
    """Make a model of a config, without data.

    Args:
        config: A `transformers.PretrainedConfig`.

    Returns:
        The class that the config names, else one with a head for language, else the
        base model.

    Raises:
        ValueError: A config that no model of transformers belongs to.
    """
    import transformers

    from spmd._trace.stand_in import meta_parameters

    for name in getattr(config, "architectures", None) or ():
        kind: Any = getattr(transformers, name, None)
        if kind is not None:
            with meta_parameters():
                return kind._from_config(config)
    for auto in ("ForCausalLM", "ForMaskedLM", "ForImageClassification", ""):
        make: Any = getattr(transformers, f"AutoModel{auto}")
        encoder = auto == "ForCausalLM" and _is_encoder(config)
        if type(config) in make._model_mapping and not encoder:
            with meta_parameters():
                return make.from_config(config)
    raise ValueError(
        f"auto_plan: no model of transformers belongs to {type(config).__name__}; give "
        f"the model, built inside spmd.meta_parameters() if it is too large for this "
        f"machine"
    )


def _is_encoder(config: Any) -> bool:
    """Whether a class for masked language models is the usual one."""
    import transformers

    masked: Any = transformers.AutoModelForMaskedLM
    return type(config) in masked._model_mapping and not config.is_decoder

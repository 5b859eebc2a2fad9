"""Turn a verified checkpoint into a model.

The pooler of BERT, ALBERT and MPNet is neither made nor loaded: nothing here reads its output.
So the weights of a random checkpoint are those of
`torch.manual_seed(seed); AutoModel.from_config(config, add_pooling_layer=False)`, and their hash
does not include it.
"""

import hashlib
import inspect
import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING
from transformers.utils import logging

from rankcollapse.checkpoints.manifest import (
    CONFIG,
    WEIGHTS,
    CheckpointError,
    Manifest,
    RandomSource,
    Source,
    WeightsKind,
    read_config,
    verify,
    write_manifest,
)
from rankcollapse.files import sha256

PRECISIONS = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}
# What published checkpoints hold beside the encoder: the pooler, and the heads of their training.
HEADS = frozenset(
    {
        "answer_class",
        "classifier",
        "cls",
        "end_logits",
        "lm_head",
        "lm_loss",
        "logits_proj",
        "pooler",
        "predictions",
        "qa_outputs",
        "sequence_summary",
        "sop_classifier",
        "start_logits",
    }
)


def load_model(folder: Path, *, precision: str = "float32", device: str = "cpu") -> PreTrainedModel:
    """Load a checkpoint as an encoder in eval mode, without a network.

    Args:
        folder: a checkpoint with its manifest.
        precision: float32, float64 or bfloat16; random weights are drawn in float32.
        device: where the model shall be, as torch names it.

    Raises:
        CheckpointError: the files or the weights are not what the manifest says, weights are
            missing, unknown or not finite.
        ValueError: unknown precision.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}; known are {', '.join(PRECISIONS)}")
    manifest = verify(folder)
    dtype = PRECISIONS[precision]
    if isinstance(manifest.source, RandomSource):
        model = _random_model(folder, manifest.source.seed)
        _check_weights(folder, manifest, model)
    else:
        model = _stored_model(folder, dtype)
    # XLNet's own parameters are made as float32 whatever is asked for.
    return model.to(dtype=dtype, device=device)


def seal(folder: Path, *, name: str, weights: WeightsKind, source: Source) -> Manifest:
    """Load what lies in a folder once, and write its manifest.

    Raises:
        CheckpointError: it cannot be loaded as a model.
    """
    if isinstance(source, RandomSource):
        model = _random_model(folder, source.seed)
    else:
        model = _stored_model(folder, torch.float32)
    manifest = Manifest(
        name=name,
        weights=weights,
        model_type=model.config.model_type,
        source=source,
        files={path.name: sha256(path) for path in sorted(folder.iterdir())},
        weights_sha256=weights_sha256(model),
    )
    write_manifest(folder, manifest)
    return manifest


def weights_sha256(model: PreTrainedModel) -> str:
    """Return the SHA-256 of a model's parameters in the order of their names.

    Each gives one line of JSON with its name, dtype and shape, then its bytes.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        tensor = parameter.detach().cpu().contiguous()
        header = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        digest.update(json.dumps(header).encode() + b"\n")
        digest.update(tensor.flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def convert_pickle(path: Path) -> None:
    """Replace pytorch_model.bin by model.safetensors beside it, without running its code.

    Raises:
        CheckpointError: it holds anything but tensors.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise CheckpointError(
            f"{path.name}: refused, it is damaged or would run code ({_first_line(error)}); "
            f"take a checkpoint with {WEIGHTS}"
        ) from None
    if not isinstance(state, dict) or not all(map(torch.is_tensor, state.values())):
        raise CheckpointError(f"{path.name}: refused, it holds more than tensors by name")
    # Clones, because safetensors refuses tensors that share memory, as tied weights do.
    tensors = {name: tensor.clone().contiguous() for name, tensor in state.items()}
    save_file(tensors, path.with_name(WEIGHTS), metadata={"format": "pt"})
    path.unlink()


def _random_model(folder: Path, seed: int) -> PreTrainedModel:
    config = _config(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModel.from_config(config, dtype=torch.float32, **_without_pooler(config))
    return model.eval()


def _stored_model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Return the model of a folder with config.json and model.safetensors."""
    config = _config(folder)
    try:
        with _silence():
            model, report = AutoModel.from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **_without_pooler(config),
            )
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"{folder / WEIGHTS}: cannot be loaded ({_first_line(error)}); "
            "fetch the checkpoint again"
        ) from None
    _check_report(folder / WEIGHTS, model, report)
    _check_finite(folder / WEIGHTS, model)
    return model.eval()


def _config(folder: Path) -> Any:  # noqa: ANN401
    """Return the transformers config of a folder.

    Raises:
        CheckpointError: it is not that of a model that transformers knows.
    """
    path = folder / CONFIG
    model_type = read_config(path)["model_type"]
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, TypeError, OSError) as error:
        raise CheckpointError(
            f"{path}: not a known architecture, model_type {model_type!r} ({_first_line(error)})"
        ) from None
    if type(config) not in MODEL_MAPPING:
        raise CheckpointError(f"{path}: model_type {model_type!r} has no encoder to load")
    return config


def _without_pooler(config: Any) -> dict[str, bool]:  # noqa: ANN401
    """Return the argument that leaves the pooler out, where the class takes it."""
    made = inspect.signature(MODEL_MAPPING[type(config)].__init__)
    return {"add_pooling_layer": False} if "add_pooling_layer" in made.parameters else {}


@contextmanager
def _silence() -> Iterator[None]:
    """Keep transformers' own report of missing and unknown weights from the log: ours follows."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _check_report(path: Path, model: PreTrainedModel, report: dict[str, Any]) -> None:
    """Refuse missing, misshapen and unknown weights; heads and old buffers may be left over."""
    buffers = {name for name, _ in model.named_buffers()}
    prefix = f"{model.base_model_prefix}."
    unknown = {
        key
        for key in report["unexpected_keys"]
        if (name := key.removeprefix(prefix)) not in buffers
        and (name.split(".")[0] not in HEADS or name.split(".")[0] in dict(model.named_children()))
    }
    misshapen = {str(key[0]) for key in report["mismatched_keys"]}
    for what, keys in (
        ("misses", set(report["missing_keys"]) - misshapen),
        ("has the wrong shape of", misshapen),
        ("has the unknown", unknown),
    ):
        if keys:
            raise CheckpointError(
                f"{path}: {what} weights {_some(keys)}; "
                "take a checkpoint that agrees with its config.json"
            )


def _some(keys: set[str], most: int = 3) -> str:
    shown = ", ".join(sorted(keys)[:most])
    return shown if len(keys) <= most else f"{shown} and {len(keys) - most} more"


def _check_finite(path: Path, model: PreTrainedModel) -> None:
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise CheckpointError(
                f"{path}: {name} holds NaN or infinity; take a checkpoint with sound weights"
            )


def _check_weights(folder: Path, manifest: Manifest, model: PreTrainedModel) -> None:
    actual = weights_sha256(model)
    if actual != manifest.weights_sha256:
        raise CheckpointError(
            f"{folder}: this machine draws other weights from the seed (sha256 {actual}, expected "
            f"{manifest.weights_sha256}); make the checkpoint again, or install the pinned versions"
        )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]

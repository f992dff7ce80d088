"""The model of a finished run, with what it was told about its inputs: it prepares new ones and predicts them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from noisette.data import DataError, DataSet, tables
from noisette.data.columns import ImageForm
from noisette.data.dataset import refuse
from noisette.data.load import unlabelled
from noisette.nn import Whitening, models
from noisette.training.build import model_of, outputs, replace_batch_norm
from noisette.training.recipe import NEED_PUBLIC, Recipe, declaration_of
from noisette.training.run_folder import WEIGHTS_FILE, FinishedRun


@dataclass(frozen=True)
class SavedModel:
    """The model of a run, and what it was told about its inputs."""

    recipe: Recipe
    model: nn.Module  # with its weights, in evaluation
    features: tuple[str, ...]  # the columns that are inputs; () where the recipe declares them or there are none
    shape: tuple[int, ...]  # of one input

    @classmethod
    def of_run(cls, folder: Path, model: str | Path | None = None, text: str | None = None) -> Self:
        """The model in a run folder.

        Args:
            folder: as ``noisette train`` writes it.
            model: where the model is not built in: its ``module:callable``, as in ``run.json``, whose code is then run
                and is not searched in the folder; or the folder that the run began with.
            text: the column of the text in new rows, if it is not the one of the run.

        Raises:
            ValueError: it is no run folder, a file was changed, or its model cannot be built from it.
        """
        run = FinishedRun.read(folder)
        if text is not None and not run.words:
            raise ValueError("the run was trained on no texts; leave out --text, the column of a text")
        recipe = run.recipe_with(model, folder).changed({} if text is None else {"data": {"text": text}}, "the run")
        try:
            built = _built(recipe, run.records(2), load((folder / WEIGHTS_FILE).read_bytes()))
        except (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, SafetensorError) as error:
            raise ValueError(f"{folder} does not contain the weights of the run's model: {error}") from error
        return cls(recipe, built.eval(), run.features, run.input_shape)

    def read(self, path: Path) -> np.ndarray:
        """The inputs in a CSV with the columns of the run, with or without its label.

        Raises:
            DataError: a column is absent, or a value is not as declared; the message names rows and no values.
        """
        declared = declaration_of(self.recipe)
        if declared.text is None and not declared.columns and not self.features:
            raise DataError(
                "the run was not trained on columns of a CSV, so no rows of one can be prepared for it; for texts name "
                "their column with --text, for others load the model as report.html shows"
            )
        found, features, text = tables.read(path, declared.encoding), declared.features(self.features), declared.text
        of_text = [f"there is no column {text!r}"] * (text not in found)
        refuse(path.name, features.absent(found) if text is None else of_text)
        inputs, problems = tables.inputs_of(found, declared, features)
        refuse(f"{path.name} ({tables.NUMBERED})", problems)
        if inputs.shape[1:] != self.shape:
            raise DataError(
                f"the columns of the run give inputs of shape {inputs.shape[1:]}, and its model takes {self.shape}: "
                "run.json is altered; take the folder as the run has written it"
            )
        return inputs

    def read_images(self, path: Path) -> tuple[list[str], np.ndarray]:
        """The names and the pixels of the images in a folder, in the form that the run declares, or of its own images.

        Raises:
            DataError: the run was not trained on images, or a file is not such an image.
        """
        if len(self.shape) != 3:
            raise DataError(f"{path} is a folder, and the run was not trained on images; give a CSV with its columns")
        channels, height, width = self.shape
        strict = ImageForm(width, height, grey=channels == 1, fitted=False)
        return unlabelled(path, declaration_of(self.recipe).images or strict)

    def predict(self, inputs: np.ndarray) -> tuple[Sequence[str], np.ndarray]:
        """The names of the columns of a prediction, and for each input its values, (n, columns).

        For classes these are their probabilities, (n, classes); for a number it is the number in its unit, (n, 1).
        """
        scores = outputs(self.model, torch.as_tensor(inputs))
        declared = declaration_of(self.recipe)
        if declared.target is not None:
            return [declared.label], declared.target.unscaled(scores)
        names = declared.class_names or tuple(map(str, range(scores.shape[1])))
        return names, torch.as_tensor(scores, dtype=torch.float64).softmax(1).numpy()


def _built(recipe: Recipe, data: DataSet, weights: Mapping[str, Tensor]) -> nn.Module:
    """The model of a recipe with these weights; ``data`` are two made-up records."""
    section, norm = recipe.model, recipe.model.batch_norm
    if norm == "per-example":
        raise ValueError("a norm over each example and public ones needs these; load the weights into the model itself")
    model = model_of(replace(recipe, model=replace(section, weights=None)), data)
    if isinstance(model, models.FixedFeatures) and (section.standardised or section.whitened):
        features = model.features(torch.as_tensor(data.train.inputs))  # the constants are among the weights
        if section.standardised:
            model = models.standardised(model, features)
        else:
            numbers = features[0].numel()
            model = models.whitened(model, Whitening(torch.zeros(numbers), torch.zeros(section.whitened, numbers)))
    trained = model.head if isinstance(model, models.FixedFeatures) else model
    if norm is not None and norm not in NEED_PUBLIC:
        replace_batch_norm(trained, norm)
    model.load_state_dict(weights)
    return model

"""The size of images and their colours: what all of them must have, or what each is brought to by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from noisette import errors as checks

if TYPE_CHECKING:
    from PIL import Image

MODES = ("L", "RGB")  # Pillow's names for 8-bit grey and 8-bit colour
_CONVERTIBLE = frozenset({*MODES, "1", "P", "LA", "PA", "RGBA", "CMYK", "YCbCr"})  # all have 8 bits a channel or less


@dataclass(frozen=True)
class ImageForm:
    """The size and the colours of images.

    width, height: in pixels.
    grey: whether images have one channel instead of three.
    fitted: whether each image is turned as its camera says, laid on white where it is transparent, scaled until it
        covers the size, and cut to its middle; otherwise an image of another form is refused.

    Guarantee: what becomes of an image depends on this declaration and on the image, never on another one.

    Raises:
        TypeError, ValueError: a length is not a whole number of at least 1.
    """

    width: int
    height: int
    grey: bool = False
    fitted: bool = True

    def __post_init__(self) -> None:
        checks.all_of(lambda: checks.count(width=self.width), lambda: checks.count(height=self.height))

    @classmethod
    def of(cls, image: Image.Image) -> ImageForm | None:
        """The form that this image has; ``None`` where it is neither 8-bit grey nor 8-bit colour without transparency.

        Other images are not fitted to it.
        """
        return cls(*image.size, grey=image.mode == "L", fitted=False) if image.mode in MODES else None

    @property
    def mode(self) -> str:
        """Pillow's name of the colours."""
        return "L" if self.grey else "RGB"

    def pixels(self, image: Image.Image) -> np.ndarray | None:
        """The pixels as bytes, (height, width) or (height, width, 3); ``None`` where the image is refused."""
        if self.fitted:
            return np.asarray(self._fit(image)) if image.mode in _CONVERTIBLE else None
        is_alike = (image.mode, image.size) == (self.mode, (self.width, self.height))
        return np.asarray(image) if is_alike else None

    def _fit(self, image: Image.Image) -> Image.Image:
        from PIL import Image, ImageOps  # imported here, as most commands read no image

        least = max(self.width, self.height)
        image.draft(None, (least, least))  # a JPEG is decoded at a fraction of its size that is no smaller than this
        turned = ImageOps.exif_transpose(image)
        if turned.has_transparency_data:
            opaque = turned.convert("RGBA")
            turned = Image.alpha_composite(Image.new("RGBA", opaque.size, "white"), opaque)
        return ImageOps.fit(turned.convert(self.mode), (self.width, self.height), Image.Resampling.BILINEAR)

    def __str__(self) -> str:
        return f"{self.width} x {self.height} pixels in {'grey' if self.grey else 'colour'}"

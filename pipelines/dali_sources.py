"""Sources of samples that DALI's readers read, by ``kind``: for `loaders.dali`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .dali_files import NumpySource, OpenedFolder, OpenedTars, WebdatasetSource
from .dali_opened import Opened
from .dali_tfrecord import OpenedRecords, TfrecordSource

Source = Annotated[WebdatasetSource | NumpySource | TfrecordSource, Field(discriminator="kind")]


def opened(source: WebdatasetSource | NumpySource | TfrecordSource) -> Opened:
    """The source, looked through. DataError names the file, and the sample, that is missing or damaged."""
    if isinstance(source, WebdatasetSource):
        return OpenedTars(source)
    if isinstance(source, NumpySource):
        return OpenedFolder(source)
    return OpenedRecords(source)

"""What pieces are made with."""

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

# dataclasses rather than models: pieces are called at every step, and attributes of a pydantic
# model take four times as long to read
piece = dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))

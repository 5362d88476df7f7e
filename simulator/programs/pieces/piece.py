"""What pieces are made with."""

from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def piece(cls: type[T]) -> type[T]:
    """Make a frozen, validated dataclass that a scenario's table can be read into.

    Not a pydantic model: pieces are called at every step, and a model's attributes take nearly
    three times as long to read.
    """
    made: Any = dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))(cls)
    return made  # type: ignore[no-any-return]


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A number that is written as one, not as text, and is finite."""


class TomlSchema(GenerateJsonSchema):
    """JSON Schema of TOML, which has no null; a table's defaults are told key by key."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """Leave null out: a key that is not set is absent."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Leave out defaults that TOML cannot write, or that their own keys tell."""
        if isinstance(schema.get("default"), BaseModel | None):
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)


def tables(*kinds: Any) -> dict[str, Any]:
    """JSON Schema of a table that any of several kinds of pieces is read from.

    The key that tells the kinds apart is required.
    """
    found = []
    for kind in kinds:
        schema = TypeAdapter(kind).json_schema(schema_generator=TomlSchema)
        tag = "schedule" if "schedule" in schema["properties"] else "kind"
        found.append(schema | {"required": sorted({tag, *schema.get("required", ())})})
    return {"anyOf": found}

"""Make pieces: frozen dataclasses for tables of a scenario."""

import operator
from functools import reduce
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    WithJsonSchema,
)
from pydantic.dataclasses import dataclass
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def piece(cls: type[T]) -> type[T]:
    """Make a class a frozen, validated dataclass for a scenario's tables.

    Not a pydantic model: pieces are called at every step, and a model's attributes take nearly
    three times as long to read.
    """
    result: Any = dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))(cls)
    return result  # type: ignore[no-any-return]


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
"""A finite number (text is refused)."""


class TomlSchema(GenerateJsonSchema):
    """Generator of JSON Schema for TOML, which has no null; keys state their defaults."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """Omit null: an unset key is absent."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Omit defaults that TOML cannot express, or that a table's keys state."""
        if isinstance(schema.get("default"), BaseModel | None):
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)


class Kinds:
    """All kinds of one sort of piece, with their union, schema and error messages.

    A kind is a class made by `piece`; its field `tag` is a Literal, the name in scenarios. To add
    one, write its class and add it to the list.

    - `schemas`: JSON Schema of each kind's table; the tag is required.
    - `names`: kinds without further required keys, whose name may replace the table.
    """

    def __init__(self, *kinds: Any, tag: str = "kind") -> None:
        self.kinds = {get_args(kind.__dataclass_fields__[tag].type)[0]: kind for kind in kinds}
        union: Any = Annotated[reduce(operator.or_, kinds), Field(discriminator=tag)]
        self._union: TypeAdapter[Any] = TypeAdapter(union)
        self.schemas = []
        self.names = []
        for name, kind in self.kinds.items():
            schema = TypeAdapter(kind).json_schema(schema_generator=TomlSchema)
            required = sorted({tag, *schema.get("required", ())})
            self.schemas.append(schema | {"required": required})
            if required == [tag]:
                self.names.append(name)

    def __str__(self) -> str:
        return ", ".join(self.kinds)

    def read(self, value: Any) -> Any:
        """Make a piece from a table, or a name with all defaults; return None for neither.

        Raises pydantic.ValidationError for a wrong table.
        """
        if isinstance(value, dict):
            return self._union.validate_python(value)
        if isinstance(value, str) and value in self.names:
            return self.kinds[value]()
        return None

    def field(
        self, sort: str, method: str, about: str, example: str
    ) -> tuple[PlainValidator, WithJsonSchema]:
        """Return a validator of a name, table, or object with `method`; and its schema.

        `sort`: what the pieces are ("codec"); `about`, `example`: for messages.
        """

        def read(value: Any) -> Any:
            result = value if hasattr(value, method) else self.read(value)
            if result is None:
                table = f"or a table such as {example}"
                raise ValueError(f"not a {sort}; write one of: {self}; {table}")
            return result

        choices = [{"enum": self.names}, *self.schemas]
        return PlainValidator(read), WithJsonSchema({"anyOf": choices, "description": about})

"""PostgreSQL's built-in types by OID, for a column whose type the catalog no longer shows.

A stream that lags behind DDL announces types that pg_attribute has already lost: ``integer`` for a column
that is ``bigint`` by now. The OIDs of built-in types never change, so their names need no catalog. The facts
come from pg_type.dat; a test compares them with servers.
"""

from __future__ import annotations

from typing import Final

from deltasmelt.bronze.shapes import PgType

# name: (oid, oid of its array, format_type's spelling where it differs from the name)
_BASE: Final = {
    "bool": (16, 1000, "boolean"),
    "bytea": (17, 1001, ""),
    "char": (18, 1002, '"char"'),
    "name": (19, 1003, ""),
    "int8": (20, 1016, "bigint"),
    "int2": (21, 1005, "smallint"),
    "int4": (23, 1007, "integer"),
    "text": (25, 1009, ""),
    "oid": (26, 1028, ""),
    "json": (114, 199, ""),
    "xml": (142, 143, ""),
    "point": (600, 1017, ""),
    "lseg": (601, 1018, ""),
    "path": (602, 1019, ""),
    "box": (603, 1020, ""),
    "polygon": (604, 1027, ""),
    "line": (628, 629, ""),
    "cidr": (650, 651, ""),
    "float4": (700, 1021, "real"),
    "float8": (701, 1022, "double precision"),
    "circle": (718, 719, ""),
    "macaddr8": (774, 775, ""),
    "money": (790, 791, ""),
    "macaddr": (829, 1040, ""),
    "inet": (869, 1041, ""),
    "bpchar": (1042, 1014, "character"),
    "varchar": (1043, 1015, "character varying"),
    "date": (1082, 1182, ""),
    "time": (1083, 1183, "time without time zone"),
    "timestamp": (1114, 1115, "timestamp without time zone"),
    "timestamptz": (1184, 1185, "timestamp with time zone"),
    "interval": (1186, 1187, ""),
    "timetz": (1266, 1270, "time with time zone"),
    "bit": (1560, 1561, ""),
    "varbit": (1562, 1563, "bit varying"),
    "numeric": (1700, 1231, ""),
    "uuid": (2950, 2951, ""),
    "pg_lsn": (3220, 3221, ""),
    "tsvector": (3614, 3643, ""),
    "tsquery": (3615, 3645, ""),
    "jsonb": (3802, 3807, ""),
    "jsonpath": (4072, 4073, ""),
}
# name: (oid, oid of its array, subtype)
_RANGES: Final = {
    "int4range": (3904, 3905, "int4"),
    "numrange": (3906, 3907, "numeric"),
    "tsrange": (3908, 3909, "timestamp"),
    "tstzrange": (3910, 3911, "timestamptz"),
    "daterange": (3912, 3913, "date"),
    "int8range": (3926, 3927, "int8"),
}
_SEMICOLON: Final = "box"  # the one built-in type whose arrays are not delimited by commas
MOST_DIGITS: Final = 38
"""Number of digits of the widest decimal that Spark and Parquet have."""
MOST_SCALE: Final = 18
"""Digits after the point of a decimal for a numeric of unknown precision; 20 remain before the point."""
_LENGTH_HEADER: Final = 4  # VARHDRSZ, which typmods of numeric, varchar and bpchar carry on top


def _scalars() -> dict[int, PgType]:
    scalars = {oid: PgType("base", name, oid=oid) for name, (oid, _, _) in _BASE.items()}
    for name, (oid, _, subtype) in _RANGES.items():
        scalars[oid] = PgType("range", name, oid=oid, element=scalars[_BASE[subtype][0]])
    return scalars


_SCALARS: Final = _scalars()
_ELEMENTS: Final = {array: oid for oid, array, _ in (*_BASE.values(), *_RANGES.values())}
_SPELLINGS: Final = {name: spelling for name, (_, _, spelling) in _BASE.items() if spelling}


def builtin_type(oid: int, typmod: int = -1) -> PgType:
    """Return the built-in type with this OID; for an unknown OID, a base type without a name."""
    if oid in _ELEMENTS:
        element = builtin_type(_ELEMENTS[oid], typmod)
        delimiter = ";" if element.name == _SEMICOLON else ","
        return PgType(
            "array", f"_{element.name}", oid=oid, typmod=typmod, element=element, delimiter=delimiter
        )
    plain = _SCALARS.get(oid) or PgType("base", "", oid=oid)
    return PgType(plain.kind, plain.name, oid=oid, typmod=typmod, element=plain.element)


def format_type(type_: PgType) -> str:
    """Return the text of PostgreSQL's ``format_type`` for a type of this module: ``numeric(12,2)[]``."""
    if type_.kind == "array" and type_.element is not None:
        return f"{format_type(type_.element)}[]"
    if not type_.name:
        return f"(type {type_.oid})"
    if type_.schema != "pg_catalog":
        return f"{type_.schema}.{type_.name}"
    spelling = _SPELLINGS.get(type_.name, type_.name)
    modifier = _modifier(type_)
    # time(3) without time zone: the modifier follows the first word of these
    first, blank, suffix = spelling.partition(" ")
    if modifier and first in ("time", "timestamp"):
        return f"{first}{modifier}{blank}{suffix}"
    return f"{spelling}{modifier}"


def _modifier(type_: PgType) -> str:
    if type_.typmod < 0:
        return ""
    if type_.name == "numeric":
        precision, scale = numeric_modifier(type_.typmod)
        return f"({precision},{scale})"
    if type_.name in ("varchar", "bpchar"):
        return f"({type_.typmod - _LENGTH_HEADER})"
    if type_.name in ("time", "timetz", "timestamp", "timestamptz", "bit", "varbit"):
        return f"({type_.typmod})"
    return ""


def numeric_modifier(typmod: int) -> tuple[int, int]:
    """Return precision and scale of a numeric's typmod, which packs both (the scale signed, in 11 bits)."""
    packed = typmod - _LENGTH_HEADER
    return packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400


def decimal_of(typmod: int) -> tuple[int, int]:
    """Return precision and scale of the decimal that holds all values of a numeric, or most of them.

    A numeric without precision, or with more digits than a decimal has, becomes a decimal with at most
    `MOST_SCALE` digits after the point (`holds_every_digit`).
    """
    digits = _digits(typmod)
    if digits is None:
        return MOST_DIGITS, MOST_SCALE
    return digits if digits[0] <= MOST_DIGITS else (MOST_DIGITS, min(digits[1], MOST_SCALE))


def holds_every_digit(typmod: int) -> bool:
    """Check whether `decimal_of` holds every finite value of a numeric."""
    digits = _digits(typmod)
    return digits is not None and digits[0] <= MOST_DIGITS


def _digits(typmod: int) -> tuple[int, int] | None:
    """Return the greatest number of a numeric's digits, in all and after the point; None means any number.

    A negative scale means zeros before the point. A scale above the precision means zeros after the point.
    Both kinds of zeros count as digits.
    """
    if typmod < 0:
        return None
    precision, scale = numeric_modifier(typmod)
    return max(precision, scale, precision - scale), max(scale, 0)

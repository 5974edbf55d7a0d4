"""Tables of a catalog that are there for a while: what a rebuild derives, what a comparison copies.

They lie in a schema of their own, so nobody takes them for the pipeline's, and so a grant on that schema is
enough. Their names begin with what they are for. Who is done drops them. What a killed process left, the next
one of the same purpose drops first; two at once of one purpose there are not, or they have other names.
"""

from __future__ import annotations

from contextlib import suppress

from bronze.lake.location import Lake
from bronze.lake.named.place import SCRATCH, address_of, location_of
from bronze.lake.named.session import session_of
from bronze.lake.named.sql import failures, quoted


def scratch_of(lake: Lake, purpose: str) -> Lake:
    """A lake whose tables lie in the catalog's scratch schema.

    Args:
        lake: in a catalog.
        purpose: small letters and digits; the same purpose means the same tables.
    """
    return Lake(catalog=lake.catalog, scratch=purpose)


def remove(scratch: Lake) -> None:
    """Drop all tables of a purpose, and the schema where nothing else is in it.

    Raises:
        OSError: the catalog refuses.
    """
    catalog = str(scratch.catalog)
    uri, schema = location_of(catalog, SCRATCH, str(scratch.scratch)), f"{quoted(catalog)}.{quoted(SCRATCH)}"
    spark = session_of(catalog)
    with failures(uri):
        if not spark.catalog.databaseExists(schema):
            return
        names = [row["tableName"] for row in spark.sql(f"SHOW TABLES IN {schema}").collect()]
        ours = [name for name in names if name.startswith(f"{scratch.scratch}_")]
        for name in ours:
            spark.sql(f"DROP TABLE IF EXISTS {address_of(location_of(catalog, SCRATCH, name))}")
    if len(ours) == len(names):
        with suppress(OSError), failures(uri):  # not ours to drop, or no longer empty
            spark.sql(f"DROP SCHEMA IF EXISTS {schema}")

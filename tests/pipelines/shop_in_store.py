"""A pipeline of two tables and a document whose lake lies in an object store, run as a user runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.object_store import lake_text
from tests.pipelines.processes import Command

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_DOCUMENT: Final = """
document: customer
root: public.customers
fields:
  - id
  - name
  - orders: {many: public.orders, on: {customer_id: id}, fields: [id, total]}
"""


def pipeline_in(
    folder: Path, database: str, slot: str, options: Mapping[str, str], *, more: str = ""
) -> Path:
    """The pipeline's file; its leases hold for four seconds."""
    (folder / "customer.yml").write_text(_DOCUMENT)
    file = folder / "shop.yml"
    file.write_text(
        f"pipeline: shop\nsource: {{dsn: '{database}', slot: {slot}, publication: smelt}}\n"
        f"{lake_text('s3://lake/shop', options, lease=4)}gold: {{documents: [customer.yml]}}\n{more}"
    )
    return file


def smelt(folder: Path, *arguments: str | Path) -> str:
    """What a command says that succeeds."""
    with Command(*arguments, folder=folder) as command:
        assert command.wait() == 0, command.text()
        return command.text()

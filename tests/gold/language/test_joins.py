"""Test the columns by which documents find the rows of a table."""

from __future__ import annotations

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.pipelines.runtime.clustering import clustered, join_columns
from deltasmelt.silver.settings import SilverSettings
from tests.gold.shop_documents import COUNTRY, CUSTOMER, FAMILY, document


def names(*texts: str) -> dict[str, tuple[str, ...]]:
    return {str(table): columns for table, columns in join_columns(map(document, texts)).items()}


def test_linked_columns_count_but_key_lookups_do_not() -> None:
    """Foreign keys, links and aggregates cluster a table; a row found by its key does not."""
    columns = names(CUSTOMER)
    assert columns["public.orders"] == ("customer_id",)
    assert columns["public.customer_tags"] == ("customer_id",)
    assert columns["public.order_items"] == ("order_id",)
    assert columns["logistics.parcels"] == ("order_id", "line")
    assert columns["public.customers"] == ("referred_by",)
    assert {"public.countries", "public.addresses", "public.products", "public.tags"}.isdisjoint(columns)


def test_first_two_columns_of_several_joins_count() -> None:
    second_text = CUSTOMER.replace("document: customer", "document: other").replace(
        "{customer_id: id}", "{status: tier}"
    )
    assert names(CUSTOMER, second_text)["public.orders"] == ("customer_id", "status")
    assert names(COUNTRY)["public.customers"] == ("country_id",)
    assert names(FAMILY)


def test_pipeline_file_setting_wins_in_any_spelling() -> None:
    settings = SilverSettings(cluster={'"public"."orders"': ["status"], "public.order_items": []})
    columns = clustered(settings, [document(CUSTOMER)]).cluster
    assert columns["public.order_items"] == []
    assert "public.orders" not in columns
    assert columns["public.customer_tags"] == ["customer_id"]
    assert TableName("public", "orders").quoted in columns

"""Test the columns by which documents find the rows of a table."""

from __future__ import annotations

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.pipelines.runtime.clustering import clustered, join_columns
from deltasmelt.silver.settings import SilverSettings
from tests.gold.shop_documents import COUNTRY, CUSTOMER, FAMILY, document


def names(*texts: str) -> dict[str, tuple[str, ...]]:
    return {str(table): columns for table, columns in join_columns(map(document, texts)).items()}


def test_a_foreign_key_a_link_and_an_aggregate_count_and_a_row_found_by_its_key_does_not() -> None:
    columns = names(CUSTOMER)
    assert columns["public.orders"] == ("customer_id",)
    assert columns["public.customer_tags"] == ("customer_id",)
    assert columns["public.order_items"] == ("order_id",)
    assert columns["logistics.parcels"] == ("order_id", "line")
    assert columns["public.customers"] == ("referred_by",)
    assert {"public.countries", "public.addresses", "public.products", "public.tags"}.isdisjoint(columns)


def test_of_several_joins_with_a_table_the_first_two_columns_count() -> None:
    second_text = CUSTOMER.replace("document: customer", "document: other").replace(
        "{customer_id: id}", "{status: tier}"
    )
    assert names(CUSTOMER, second_text)["public.orders"] == ("customer_id", "status")
    assert names(COUNTRY)["public.customers"] == ("country_id",)
    assert names(FAMILY)


def test_what_the_pipeline_file_says_of_a_table_wins_in_whichever_spelling() -> None:
    settings = SilverSettings(cluster={'"public"."orders"': ["status"], "public.order_items": []})
    columns = clustered(settings, [document(CUSTOMER)]).cluster
    assert columns["public.order_items"] == []
    assert "public.orders" not in columns
    assert columns["public.customer_tags"] == ["customer_id"]
    assert TableName("public", "orders").quoted in columns

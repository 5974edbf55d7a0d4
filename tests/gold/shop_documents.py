"""Documents over the test shop, and the meaning of their SQL in Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.config.yaml_file import parse_yaml
from deltasmelt.gold.language.document import Document, parse_document

if TYPE_CHECKING:
    from collections.abc import Callable

CUSTOMER: Final = """\
document: customer
root: public.customers
where: "deleted_at is null"
fields:
  - id
  - email: {sql: "lower(trim(email))"}
  - tier: {column: tier, default: free}
  - account:
      object:
        - created_at
        - balance
        - home: {one: public.addresses, on: {id: billing_id}, fields: [city]}
  - country: {one: public.countries, on: {id: country_id}, fields: [code, name]}
  - billing: {one: public.addresses, on: {id: billing_id}, fields: [city,
      {country: {one: public.countries, on: {id: country_id}, fields: [code]}}]}
  - shipping: {one: public.addresses, on: {id: shipping_id}, fields: [city]}
  - referrer: {one: public.customers, on: {id: referred_by}, fields: [id, {mail: {column: email}}]}
  - referred: {many: public.customers, on: {referred_by: id}, where: "deleted_at is null", values: id}
  - orders:
      many: public.orders
      on: {customer_id: id}
      where: "status <> 'cancelled'"
      order_by: [placed_at desc]
      limit: 3
      fields:
        - id
        - total
        - items:
            many: public.order_items
            on: {order_id: id}
            fields:
              - sku
              - qty
              - product: {one: public.products, on: {id: product_id}, fields: [name, price, launched]}
              - parcels: {many: logistics.parcels, on: {order_id: order_id, line: line},
                          order_by: [weight desc], fields: [carrier, weight]}
        - pieces: {sum: public.order_items.qty, on: {order_id: id}}
  - first_order: {one: public.orders, on: {customer_id: id}, order_by: [placed_at nulls first],
                  fields: [id, status]}
  - tags:
      many: public.tags
      through: {table: public.customer_tags, on: {customer_id: id}, to: {tag_id: id},
                where: active, fields: [added_at]}
      where: "name <> 'old'"
      order_by: [name]
      fields: [id, name]
  - tag_names: {many: public.tags, values: name,
                through: {table: public.customer_tags, on: {customer_id: id}, to: {tag_id: id}}}
  - order_count: {count: public.orders, on: {customer_id: id}}
  - paid_total: {sum: public.orders.total, on: {customer_id: id}, where: "status = 'paid'"}
  - average_order: {avg: public.orders.total, on: {customer_id: id}}
  - last_order: {max: public.orders.placed_at, on: {customer_id: id}}
  - statuses: {count_distinct: public.orders.status, on: {customer_id: id}}
  - placements: {collect: public.orders.placed_at, on: {customer_id: id}, order_by: [placed_at desc]}
  - tag_count: {count_distinct: public.tags.name,
                through: {table: public.customer_tags, on: {customer_id: id}, to: {tag_id: id}}}
"""

PARCEL_LINE: Final = """\
document: parcel_line
root: public.order_items
fields:
  - number: {column: line}
  - order_id
  - weight: {sum: logistics.parcels.weight, on: {order_id: order_id, line: line}}
  - mean: {avg: logistics.parcels.weight, on: {order_id: order_id, line: line}}
  - order: {one: public.orders, on: {id: order_id}, fields: [status,
      {customer: {one: public.customers, on: {id: customer_id}, fields: [email]}}]}
"""

COUNTRY: Final = """\
document: country
root: public.countries
where: "code <> 'IT'"
fields:
  - name
  - people: {many: public.customers, on: {country_id: id}, fields: [email,
      {bought: {many: public.orders, on: {customer_id: id}, where: "status = 'paid'", values: total}}]}
"""

HOME: Final = """\
document: home
root: public.customers
fields:
  - id
  - billing: {one: public.addresses, on: {id: billing_id}, fields: [city]}
  - tags: {many: public.tags, fields: [id, name],
           through: {table: public.customer_tags, on: {customer_id: id}, to: {tag_id: id}}}
  - tag_count: {count_distinct: public.tags.name,
                through: {table: public.customer_tags, on: {customer_id: id}, to: {tag_id: id}}}
"""

PROFILE: Final = """\
document: profile
root: public.customers
fields:
  - id
  - home:
      one: public.addresses
      on: {id: billing_id}
      flatten: billing_
      fields:
        - city
        - land: {one: public.countries, on: {id: country_id}, flatten: true, fields: [code,
            {land: {column: name}}]}
        - place: {object: [id, {label: {sql: "lower(trim(city))"}}]}
  - referrer:
      one: public.customers
      on: {id: referred_by}
      flatten: "by_"
      fields:
        - email
        - orders: {many: public.orders, on: {customer_id: id}, cap: 1, values: id}
        - by_status: {many: public.orders, on: {customer_id: id}, key_by: status, values: total}
        - order_count: {count: public.orders, on: {customer_id: id}}
        - stamps: {collect: public.orders.placed_at, on: {customer_id: id}}
  - orders: {many: public.orders, on: {customer_id: id}, order_by: [placed_at desc], cap: 2, fields: [id,
      status,
      {by_line: {many: public.order_items, on: {order_id: id}, key_by: line, fields: [sku, qty]}}]}
  - by_status: {many: public.orders, on: {customer_id: id}, key_by: status, order_by: [total desc],
               fields: [id, total]}
  - names: {many: public.tags, key_by: id, values: name,
            through: {table: public.customer_tags, on: {customer_id: id}, to: {tag_id: id}}}
  - first_status: {first: public.orders.status, on: {customer_id: id}, order_by: [placed_at]}
  - last_status: {last: public.orders.status, on: {customer_id: id}, order_by: [placed_at]}
  - last_paid: {last: public.orders.total, on: {customer_id: id}, where: "status = 'paid'"}
  - last_tag: {last: public.tags.name, order_by: [name desc],
               through: {table: public.customer_tags, on: {customer_id: id}, to: {tag_id: id}, where: active}}
  - stamps: {collect: public.orders.placed_at, on: {customer_id: id}, order_by: [placed_at], cap: 1}
  - pieces: {sum: public.order_items.qty,
             through: {table: public.orders, on: {customer_id: id}, where: "status = 'paid'",
                       to: {id: order_id}}}
  - carriers:
      collect: logistics.parcels.carrier
      through:
        - {table: public.orders, on: {customer_id: id}}
        - {table: public.order_items, on: {order_id: id}, to: {order_id: order_id, line: line}}
  - bought:
      many: public.products
      through:
        - {table: public.orders, on: {customer_id: id}, where: "status = 'paid'", fields: [placed_at]}
        - {table: public.order_items, on: {order_id: id}, to: {product_id: id}, fields: [qty]}
      order_by: [name]
      fields: [id, name, {last_price: {column: price}}]
  - heaviest: {max: logistics.parcels.weight, through: [{table: public.orders, on: {customer_id: id}},
               {table: public.order_items, on: {order_id: id}, to: {order_id: order_id, line: line}}]}
"""

FAMILY: Final = """\
document: family
root: public.customers
fields:
  - id
  - referrer:
      one: public.customers
      on: {id: referred_by}
      recurse: {on: {id: referred_by}, max_depth: 3}
      fields:
        - id
        - mail: {sql: "lower(trim(email))"}
        - country: {one: public.countries, on: {id: country_id}, fields: [code]}
  - referred:
      many: public.customers
      on: {referred_by: id}
      where: "deleted_at is null"
      order_by: [balance desc]
      limit: 3
      recurse: {on: {referred_by: id}, max_depth: 4}
      fields: [id, {order_count: {count: public.orders, on: {customer_id: id}}}, created_at]
  - heir:
      one: public.customers
      on: {referred_by: id}
      order_by: [email]
      recurse: {on: {referred_by: id}, max_depth: 2}
      fields: [id, {first_order: {one: public.orders, on: {customer_id: id}, fields: [id]}}]
  - by_tier:
      many: public.customers
      on: {referred_by: id}
      key_by: tier
      recurse: {on: {referred_by: id}, max_depth: 2}
      fields: [id]
"""

LAND: Final = """\
document: land
root: public.countries
fields:
  - id
  - people:
      many: public.customers
      on: {country_id: id}
      cap: 2
      recurse: {on: {country_id: country_id, referred_by: id}, max_depth: 3}
      fields: [id, {tags: {many: public.tags, values: name,
        through: {table: public.customer_tags, on: {customer_id: id}, to: {tag_id: id}}}}]
  - neighbours:
      many: public.addresses
      on: {country_id: id}
      recurse: {on: {country_id: country_id}, max_depth: 2}
      fields: [city, {someone: {one: public.customers, on: {billing_id: id}, fields: [id, {referrer:
        {one: public.customers, on: {id: referred_by}, fields: [id],
         recurse: {on: {id: referred_by}, max_depth: 2}}}]}}]
"""

SNIPPETS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "deleted_at is null": lambda row: row["deleted_at"] is None,
    "lower(trim(email))": lambda row: None if row["email"] is None else row["email"].strip().lower(),
    "status <> 'cancelled'": lambda row: row["status"] is not None and row["status"] != "cancelled",
    "status = 'paid'": lambda row: row["status"] == "paid",
    "lower(trim(city))": lambda row: None if row["city"] is None else row["city"].strip().lower(),
    "active": lambda row: row["active"],
    "name <> 'old'": lambda row: row["name"] is not None and row["name"] != "old",
    "code <> 'IT'": lambda row: row["code"] is not None and row["code"] != "IT",
}


def document(text: str) -> Document:
    """Return a definition as if read from a file."""
    return parse_document(parse_yaml(text, Path("document.yml")))

WITH
-- home.land: public.countries
n2_land AS (
  SELECT
    `t`.`id` AS k0,
    named_struct('code', `t`.`code`, 'land', `t`.`name`) AS item
  FROM public.countries AS t
),
-- home: public.addresses
n1_home AS (
  SELECT
    `t`.`id` AS k0,
    named_struct(
      'city', `t`.`city`,
      'code', `n2_land`.`item`.`code`,
      'land', `n2_land`.`item`.`land`,
      'place', named_struct('id', `t`.`id`, 'label', lower(trim(`t`.`city`)))
    ) AS item
  FROM public.addresses AS t
  LEFT JOIN n2_land ON n2_land.k0 = `t`.`country_id`
),
-- referrer.orders: public.orders
n4_orders AS (
  SELECT
    k0,
    named_struct(
      'items', sort_array(collect_list(named_struct('n', n, 'item', item)) FILTER (WHERE n <= 1)).item,
      'count', count(*),
      'truncated', count(*) > 1
    ) AS item
  FROM (
    SELECT
      k0,
      item,
      row_number() OVER (PARTITION BY k0 ORDER BY o0 ASC NULLS LAST) AS n
    FROM (
      SELECT
        `t`.`customer_id` AS k0,
        `t`.`id` AS o0,
        `t`.`id` AS item
      FROM public.orders AS t
      WHERE `t`.`customer_id` IS NOT NULL
    ) AS s
  ) AS s
  GROUP BY k0
),
-- referrer.by_status: public.orders
n5_by_status AS (
  SELECT
    k0,
    map_from_entries(transform(array_sort(collect_list(named_struct('n', n, 'name', name, 'item', item)), (a, b) -> a.n - b.n), e -> struct(e.name, e.item))) AS item
  FROM (
    SELECT
      k0,
      item,
      row_number() OVER (PARTITION BY k0 ORDER BY o0 ASC NULLS LAST) AS n,
      name,
      row_number() OVER (PARTITION BY k0, name ORDER BY o0 ASC NULLS LAST) AS same
    FROM (
      SELECT
        `t`.`customer_id` AS k0,
        `t`.`id` AS o0,
        `t`.`total` AS item,
        `t`.`status` AS name
      FROM public.orders AS t
      WHERE (`t`.`customer_id` IS NOT NULL)
        AND (`t`.`status` IS NOT NULL)
    ) AS s
  ) AS s
  WHERE same = 1
  GROUP BY k0
),
-- referrer.order_count: public.orders
n6_order_count AS (
  SELECT
    `t`.`customer_id` AS k0,
    count(*) AS m0
  FROM public.orders AS t
  WHERE `t`.`customer_id` IS NOT NULL
  GROUP BY `t`.`customer_id`
),
-- referrer.stamps: public.orders
n7_stamps AS (
  SELECT
    k0,
    sort_array(collect_list(named_struct('o0', o0, 'item', item))).item AS item
  FROM (
    SELECT /*+ REPARTITION(k0) */
      `t`.`customer_id` AS k0,
      `t`.`id` AS o0,
      `t`.`placed_at` AS item
    FROM public.orders AS t
    WHERE (`t`.`customer_id` IS NOT NULL)
      AND (`t`.`placed_at` IS NOT NULL)
  ) AS s
  GROUP BY k0
),
-- referrer: public.customers
n3_referrer AS (
  SELECT
    `t`.`id` AS k0,
    named_struct(
      'email', `t`.`email`,
      'orders', coalesce(n4_orders.item, named_struct('items', array(), 'count', 0L, 'truncated', false)),
      'by_status', coalesce(n5_by_status.item, map()),
      'order_count', coalesce(n6_order_count.m0, 0L),
      'stamps', coalesce(n7_stamps.item, array())
    ) AS item
  FROM public.customers AS t
  LEFT JOIN n4_orders ON n4_orders.k0 = `t`.`id`
  LEFT JOIN n5_by_status ON n5_by_status.k0 = `t`.`id`
  LEFT JOIN n6_order_count ON n6_order_count.k0 = `t`.`id`
  LEFT JOIN n7_stamps ON n7_stamps.k0 = `t`.`id`
),
-- orders.by_line: public.order_items
n9_by_line AS (
  SELECT
    k0,
    map_from_entries(transform(array_sort(collect_list(named_struct('n', n, 'name', name, 'item', item)), (a, b) -> a.n - b.n), e -> struct(e.name, e.item))) AS item
  FROM (
    SELECT
      k0,
      item,
      row_number() OVER (PARTITION BY k0 ORDER BY o0 ASC NULLS LAST, o1 ASC NULLS LAST) AS n,
      name,
      row_number() OVER (PARTITION BY k0, name ORDER BY o0 ASC NULLS LAST, o1 ASC NULLS LAST) AS same
    FROM (
      SELECT
        `t`.`order_id` AS k0,
        `t`.`order_id` AS o0,
        `t`.`line` AS o1,
        named_struct('sku', `t`.`sku`, 'qty', `t`.`qty`) AS item,
        `t`.`line` AS name
      FROM public.order_items AS t
      WHERE `t`.`line` IS NOT NULL
    ) AS s
  ) AS s
  WHERE same = 1
  GROUP BY k0
),
-- orders: public.orders
n8_orders AS (
  SELECT
    k0,
    named_struct(
      'items', array_sort(collect_list(named_struct('n', n, 'item', item)) FILTER (WHERE n <= 2), (a, b) -> a.n - b.n).item,
      'count', count(*),
      'truncated', count(*) > 2
    ) AS item
  FROM (
    SELECT
      k0,
      item,
      row_number() OVER (PARTITION BY k0 ORDER BY o0 DESC NULLS FIRST, o1 ASC NULLS LAST) AS n
    FROM (
      SELECT
        `t`.`customer_id` AS k0,
        `t`.`placed_at` AS o0,
        `t`.`id` AS o1,
        named_struct(
          'id', `t`.`id`,
          'status', `t`.`status`,
          'by_line', coalesce(n9_by_line.item, map())
        ) AS item
      FROM public.orders AS t
      LEFT JOIN n9_by_line ON n9_by_line.k0 = `t`.`id`
      WHERE `t`.`customer_id` IS NOT NULL
    ) AS s
  ) AS s
  GROUP BY k0
),
-- by_status: public.orders
n10_by_status AS (
  SELECT
    k0,
    map_from_entries(transform(array_sort(collect_list(named_struct('n', n, 'name', name, 'item', item)), (a, b) -> a.n - b.n), e -> struct(e.name, e.item))) AS item
  FROM (
    SELECT
      k0,
      item,
      row_number() OVER (PARTITION BY k0 ORDER BY o0 DESC NULLS FIRST, o1 ASC NULLS LAST) AS n,
      name,
      row_number() OVER (PARTITION BY k0, name ORDER BY o0 DESC NULLS FIRST, o1 ASC NULLS LAST) AS same
    FROM (
      SELECT
        `t`.`customer_id` AS k0,
        `t`.`total` AS o0,
        `t`.`id` AS o1,
        named_struct('id', `t`.`id`, 'total', `t`.`total`) AS item,
        `t`.`status` AS name
      FROM public.orders AS t
      WHERE (`t`.`customer_id` IS NOT NULL)
        AND (`t`.`status` IS NOT NULL)
    ) AS s
  ) AS s
  WHERE same = 1
  GROUP BY k0
),
-- names: public.tags
n11_names AS (
  SELECT
    k0,
    map_from_entries(transform(array_sort(collect_list(named_struct('n', n, 'name', name, 'item', item)), (a, b) -> a.n - b.n), e -> struct(e.name, e.item))) AS item
  FROM (
    SELECT
      k0,
      item,
      row_number() OVER (PARTITION BY k0 ORDER BY o0 ASC NULLS LAST, o1 ASC NULLS LAST, o2 ASC NULLS LAST) AS n,
      name,
      row_number() OVER (PARTITION BY k0, name ORDER BY o0 ASC NULLS LAST, o1 ASC NULLS LAST, o2 ASC NULLS LAST) AS same
    FROM (
      SELECT
        `l`.`customer_id` AS k0,
        `t`.`id` AS o0,
        `l`.`customer_id` AS o1,
        `l`.`tag_id` AS o2,
        `t`.`name` AS item,
        `t`.`id` AS name
      FROM public.customer_tags AS l
      JOIN public.tags AS t ON `l`.`tag_id` = `t`.`id`
      WHERE `t`.`id` IS NOT NULL
    ) AS s
  ) AS s
  WHERE same = 1
  GROUP BY k0
),
-- first_status: public.orders
n12_first_status AS (
  SELECT
    k0, item
  FROM (
    SELECT
      k0,
      item,
      row_number() OVER (PARTITION BY k0 ORDER BY o0 ASC NULLS LAST, o1 ASC NULLS LAST) AS n
    FROM (
      SELECT
        `t`.`customer_id` AS k0,
        `t`.`placed_at` AS o0,
        `t`.`id` AS o1,
        `t`.`status` AS item
      FROM public.orders AS t
      WHERE `t`.`customer_id` IS NOT NULL
    ) AS s
  ) AS s
  WHERE n = 1
),
-- last_status: public.orders
n13_last_status AS (
  SELECT
    k0, item
  FROM (
    SELECT
      k0,
      item,
      row_number() OVER (PARTITION BY k0 ORDER BY o0 DESC NULLS FIRST, o1 DESC NULLS FIRST) AS n
    FROM (
      SELECT
        `t`.`customer_id` AS k0,
        `t`.`placed_at` AS o0,
        `t`.`id` AS o1,
        `t`.`status` AS item
      FROM public.orders AS t
      WHERE `t`.`customer_id` IS NOT NULL
    ) AS s
  ) AS s
  WHERE n = 1
),
-- last_paid: public.orders
n14_last_paid AS (
  SELECT
    k0, item
  FROM (
    SELECT
      k0,
      item,
      row_number() OVER (PARTITION BY k0 ORDER BY o0 DESC NULLS FIRST) AS n
    FROM (
      SELECT
        `t`.`customer_id` AS k0,
        `t`.`id` AS o0,
        `t`.`total` AS item
      FROM public.orders AS t
      WHERE (`t`.`customer_id` IS NOT NULL)
        AND (`t`.`status` = 'paid')
    ) AS s
  ) AS s
  WHERE n = 1
),
-- last_tag: public.tags
n15_last_tag AS (
  SELECT
    k0, item
  FROM (
    SELECT
      k0,
      item,
      row_number() OVER (PARTITION BY k0 ORDER BY o0 ASC NULLS LAST, o1 DESC NULLS FIRST, o2 DESC NULLS FIRST, o3 DESC NULLS FIRST) AS n
    FROM (
      SELECT
        `l`.`customer_id` AS k0,
        `t`.`name` AS o0,
        `t`.`id` AS o1,
        `l`.`customer_id` AS o2,
        `l`.`tag_id` AS o3,
        `t`.`name` AS item
      FROM public.customer_tags AS l
      JOIN public.tags AS t ON `l`.`tag_id` = `t`.`id`
      WHERE `l`.`active`
    ) AS s
  ) AS s
  WHERE n = 1
),
-- stamps: public.orders
n16_stamps AS (
  SELECT
    k0,
    named_struct(
      'items', sort_array(collect_list(named_struct('n', n, 'item', item)) FILTER (WHERE n <= 1)).item,
      'count', count(*),
      'truncated', count(*) > 1
    ) AS item
  FROM (
    SELECT
      k0,
      item,
      row_number() OVER (PARTITION BY k0 ORDER BY o0 ASC NULLS LAST, o1 ASC NULLS LAST) AS n
    FROM (
      SELECT
        `t`.`customer_id` AS k0,
        `t`.`placed_at` AS o0,
        `t`.`id` AS o1,
        `t`.`placed_at` AS item
      FROM public.orders AS t
      WHERE (`t`.`customer_id` IS NOT NULL)
        AND (`t`.`placed_at` IS NOT NULL)
    ) AS s
  ) AS s
  GROUP BY k0
),
-- pieces: public.order_items
n17_pieces AS (
  SELECT
    `l`.`customer_id` AS k0,
    sum(`t`.`qty`) AS m0
  FROM public.orders AS l
  JOIN public.order_items AS t ON `l`.`id` = `t`.`order_id`
  WHERE (`l`.`customer_id` IS NOT NULL)
    AND (`l`.`status` = 'paid')
  GROUP BY `l`.`customer_id`
),
-- carriers: logistics.parcels
n18_carriers AS (
  SELECT
    k0,
    sort_array(collect_list(named_struct('o0', o0, 'o1', o1, 'o2', o2, 'o3', o3, 'item', item))).item AS item
  FROM (
    SELECT /*+ REPARTITION(k0) */
      `l`.`customer_id` AS k0,
      `t`.`id` AS o0,
      `l2`.`order_id` AS o1,
      `l2`.`line` AS o2,
      `l`.`id` AS o3,
      `t`.`carrier` AS item
    FROM public.orders AS l
    JOIN public.order_items AS l2 ON `l`.`id` = `l2`.`order_id`
    JOIN logistics.parcels AS t ON `l2`.`order_id` = `t`.`order_id` AND `l2`.`line` = `t`.`line`
    WHERE (`l`.`customer_id` IS NOT NULL)
      AND (`t`.`carrier` IS NOT NULL)
  ) AS s
  GROUP BY k0
),
-- bought: public.products
n19_bought AS (
  SELECT
    k0,
    sort_array(collect_list(named_struct('n', n, 'item', item))).item AS item
  FROM (
    SELECT
      k0,
      item,
      row_number() OVER (PARTITION BY k0 ORDER BY o0 ASC NULLS LAST, o1 ASC NULLS LAST, o2 ASC NULLS LAST, o3 ASC NULLS LAST, o4 ASC NULLS LAST) AS n
    FROM (
      SELECT
        `l`.`customer_id` AS k0,
        `t`.`name` AS o0,
        `t`.`id` AS o1,
        `l2`.`order_id` AS o2,
        `l2`.`line` AS o3,
        `l`.`id` AS o4,
        named_struct(
          'id', `t`.`id`,
          'name', `t`.`name`,
          'last_price', `t`.`price`,
          'placed_at', `l`.`placed_at`,
          'qty', `l2`.`qty`
        ) AS item
      FROM public.orders AS l
      JOIN public.order_items AS l2 ON `l`.`id` = `l2`.`order_id`
      JOIN public.products AS t ON `l2`.`product_id` = `t`.`id`
      WHERE (`l`.`customer_id` IS NOT NULL)
        AND (`l`.`status` = 'paid')
    ) AS s
  ) AS s
  GROUP BY k0
),
-- heaviest: logistics.parcels
n20_heaviest AS (
  SELECT
    `l`.`customer_id` AS k0,
    max(`t`.`weight`) AS m0
  FROM public.orders AS l
  JOIN public.order_items AS l2 ON `l`.`id` = `l2`.`order_id`
  JOIN logistics.parcels AS t ON `l2`.`order_id` = `t`.`order_id` AND `l2`.`line` = `t`.`line`
  WHERE `l`.`customer_id` IS NOT NULL
  GROUP BY `l`.`customer_id`
)
SELECT
  `t`.`id` AS `id`,
  `n1_home`.`item`.`city` AS `billing_city`,
  `n1_home`.`item`.`code` AS `billing_code`,
  `n1_home`.`item`.`land` AS `billing_land`,
  `n1_home`.`item`.`place` AS `billing_place`,
  `n3_referrer`.`item`.`email` AS `by_email`,
  coalesce(`n3_referrer`.`item`.`orders`, named_struct('items', array(), 'count', 0L, 'truncated', false)) AS `by_orders`,
  coalesce(`n3_referrer`.`item`.`by_status`, map()) AS `by_by_status`,
  coalesce(`n3_referrer`.`item`.`order_count`, 0L) AS `by_order_count`,
  coalesce(`n3_referrer`.`item`.`stamps`, array()) AS `by_stamps`,
  coalesce(n8_orders.item, named_struct('items', array(), 'count', 0L, 'truncated', false)) AS `orders`,
  coalesce(n10_by_status.item, map()) AS `by_status`,
  coalesce(n11_names.item, map()) AS `names`,
  n12_first_status.item AS `first_status`,
  n13_last_status.item AS `last_status`,
  n14_last_paid.item AS `last_paid`,
  n15_last_tag.item AS `last_tag`,
  coalesce(n16_stamps.item, named_struct('items', array(), 'count', 0L, 'truncated', false)) AS `stamps`,
  n17_pieces.m0 AS `pieces`,
  coalesce(n18_carriers.item, array()) AS `carriers`,
  coalesce(n19_bought.item, array()) AS `bought`,
  n20_heaviest.m0 AS `heaviest`
FROM public.customers AS t
LEFT JOIN n1_home ON n1_home.k0 = `t`.`billing_id`
LEFT JOIN n3_referrer ON n3_referrer.k0 = `t`.`referred_by`
LEFT JOIN n8_orders ON n8_orders.k0 = `t`.`id`
LEFT JOIN n10_by_status ON n10_by_status.k0 = `t`.`id`
LEFT JOIN n11_names ON n11_names.k0 = `t`.`id`
LEFT JOIN n12_first_status ON n12_first_status.k0 = `t`.`id`
LEFT JOIN n13_last_status ON n13_last_status.k0 = `t`.`id`
LEFT JOIN n14_last_paid ON n14_last_paid.k0 = `t`.`id`
LEFT JOIN n15_last_tag ON n15_last_tag.k0 = `t`.`id`
LEFT JOIN n16_stamps ON n16_stamps.k0 = `t`.`id`
LEFT JOIN n17_pieces ON n17_pieces.k0 = `t`.`id`
LEFT JOIN n18_carriers ON n18_carriers.k0 = `t`.`id`
LEFT JOIN n19_bought ON n19_bought.k0 = `t`.`id`
LEFT JOIN n20_heaviest ON n20_heaviest.k0 = `t`.`id`

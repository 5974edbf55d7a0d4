WITH
-- account.home: public.addresses
n1_home AS (
  SELECT
    `t`.`id` AS k0,
    named_struct('city', `t`.`city`) AS item
  FROM public.addresses AS t
),
-- country: public.countries
n2_country AS (
  SELECT
    `t`.`id` AS k0,
    named_struct('code', `t`.`code`, 'name', `t`.`name`) AS item
  FROM public.countries AS t
),
-- billing.country: public.countries
n4_country AS (
  SELECT
    `t`.`id` AS k0,
    named_struct('code', `t`.`code`) AS item
  FROM public.countries AS t
),
-- billing: public.addresses
n3_billing AS (
  SELECT
    `t`.`id` AS k0,
    named_struct('city', `t`.`city`, 'country', n4_country.item) AS item
  FROM public.addresses AS t
  LEFT JOIN n4_country ON n4_country.k0 = `t`.`country_id`
),
-- shipping: public.addresses
n5_shipping AS (
  SELECT
    `t`.`id` AS k0,
    named_struct('city', `t`.`city`) AS item
  FROM public.addresses AS t
),
-- referrer: public.customers
n6_referrer AS (
  SELECT
    `t`.`id` AS k0,
    named_struct('id', `t`.`id`, 'mail', `t`.`email`) AS item
  FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
),
-- referred: public.customers
n7_referred AS (
  SELECT
    k0,
    sort_array(collect_list(named_struct('o0', o0, 'item', item))).item AS item
  FROM (
    SELECT /*+ REPARTITION(k0) */
      `t`.`referred_by` AS k0,
      `t`.`id` AS o0,
      `t`.`id` AS item
    FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
    WHERE (`t`.`referred_by` IS NOT NULL)
      AND ((`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`))
  ) AS s
  GROUP BY k0
),
-- orders.items.product: public.products
n10_product AS (
  SELECT
    `t`.`id` AS k0,
    named_struct('name', `t`.`name`, 'price', `t`.`price`, 'launched', `t`.`launched`) AS item
  FROM public.products AS t
),
-- orders.items.parcels: logistics.parcels
n11_parcels AS (
  SELECT
    k0, k1,
    sort_array(collect_list(named_struct('n', n, 'item', item))).item AS item
  FROM (
    SELECT
      k0,
      k1,
      item,
      row_number() OVER (PARTITION BY k0, k1 ORDER BY o0 DESC NULLS FIRST, o1 ASC NULLS LAST) AS n
    FROM (
      SELECT
        `t`.`order_id` AS k0,
        `t`.`line` AS k1,
        `t`.`weight` AS o0,
        `t`.`id` AS o1,
        named_struct('carrier', `t`.`carrier`, 'weight', `t`.`weight`) AS item
      FROM logistics.parcels AS t
      WHERE (`t`.`order_id` IS NOT NULL)
        AND (`t`.`line` IS NOT NULL)
    ) AS s
  ) AS s
  GROUP BY k0, k1
),
-- orders.items: public.order_items
n9_items AS (
  SELECT
    k0,
    sort_array(collect_list(named_struct('o0', o0, 'o1', o1, 'item', item))).item AS item
  FROM (
    SELECT /*+ REPARTITION(k0) */
      `t`.`order_id` AS k0,
      `t`.`order_id` AS o0,
      `t`.`line` AS o1,
      named_struct(
        'sku', `t`.`sku`,
        'qty', `t`.`qty`,
        'product', n10_product.item,
        'parcels', coalesce(n11_parcels.item, array())
      ) AS item
    FROM public.order_items AS t
    LEFT JOIN n10_product ON n10_product.k0 = `t`.`product_id`
    LEFT JOIN n11_parcels ON n11_parcels.k0 = `t`.`order_id` AND n11_parcels.k1 = `t`.`line`
  ) AS s
  GROUP BY k0
),
-- orders.pieces: public.order_items
n12_pieces AS (
  SELECT
    `t`.`order_id` AS k0,
    sum(`t`.`qty`) AS m0
  FROM public.order_items AS t
  GROUP BY `t`.`order_id`
),
-- orders: public.orders
n8_orders AS (
  SELECT
    k0,
    sort_array(collect_list(named_struct('n', n, 'item', item))).item AS item
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
          'total', `t`.`total`,
          'items', coalesce(n9_items.item, array()),
          'pieces', n12_pieces.m0
        ) AS item
      FROM public.orders AS t
      LEFT JOIN n9_items ON n9_items.k0 = `t`.`id`
      LEFT JOIN n12_pieces ON n12_pieces.k0 = `t`.`id`
      WHERE (`t`.`customer_id` IS NOT NULL)
        AND (`t`.`status` <> 'cancelled')
    ) AS s
  ) AS s
  WHERE n <= 3
  GROUP BY k0
),
-- first_order: public.orders
n13_first_order AS (
  SELECT
    k0, item, several
  FROM (
    SELECT
      k0,
      item,
      row_number() OVER (PARTITION BY k0 ORDER BY o0 ASC NULLS FIRST, o1 ASC NULLS LAST) AS n,
      count(*) OVER (PARTITION BY k0) > 1 AS several
    FROM (
      SELECT
        `t`.`customer_id` AS k0,
        `t`.`placed_at` AS o0,
        `t`.`id` AS o1,
        named_struct('id', `t`.`id`, 'status', `t`.`status`) AS item
      FROM public.orders AS t
      WHERE `t`.`customer_id` IS NOT NULL
    ) AS s
  ) AS s
  WHERE n = 1
),
-- tags: public.tags
n14_tags AS (
  SELECT
    k0,
    sort_array(collect_list(named_struct('n', n, 'item', item))).item AS item
  FROM (
    SELECT
      k0,
      item,
      row_number() OVER (PARTITION BY k0 ORDER BY o0 ASC NULLS LAST, o1 ASC NULLS LAST, o2 ASC NULLS LAST, o3 ASC NULLS LAST) AS n
    FROM (
      SELECT
        `l`.`customer_id` AS k0,
        `t`.`name` AS o0,
        `t`.`id` AS o1,
        `l`.`customer_id` AS o2,
        `l`.`tag_id` AS o3,
        named_struct('id', `t`.`id`, 'name', `t`.`name`, 'added_at', `l`.`added_at`) AS item
      FROM public.customer_tags AS l
      JOIN public.tags AS t ON `l`.`tag_id` = `t`.`id`
      WHERE (`l`.`active`)
        AND (`t`.`name` <> 'old')
    ) AS s
  ) AS s
  GROUP BY k0
),
-- tag_names: public.tags
n15_tag_names AS (
  SELECT
    k0,
    sort_array(collect_list(named_struct('o0', o0, 'o1', o1, 'o2', o2, 'item', item))).item AS item
  FROM (
    SELECT /*+ REPARTITION(k0) */
      `l`.`customer_id` AS k0,
      `t`.`id` AS o0,
      `l`.`customer_id` AS o1,
      `l`.`tag_id` AS o2,
      `t`.`name` AS item
    FROM public.customer_tags AS l
    JOIN public.tags AS t ON `l`.`tag_id` = `t`.`id`
  ) AS s
  GROUP BY k0
),
-- order_count: public.orders
n16_order_count AS (
  SELECT
    `t`.`customer_id` AS k0,
    count(*) AS m0,
    sum(`t`.`total`) FILTER (WHERE `t`.`status` = 'paid') AS m1,
    avg(`t`.`total`) AS m2,
    max(`t`.`placed_at`) AS m3,
    count(DISTINCT `t`.`status`) AS m4
  FROM public.orders AS t
  WHERE `t`.`customer_id` IS NOT NULL
  GROUP BY `t`.`customer_id`
),
-- placements: public.orders
n17_placements AS (
  SELECT
    k0,
    sort_array(collect_list(named_struct('n', n, 'item', item))).item AS item
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
        `t`.`placed_at` AS item
      FROM public.orders AS t
      WHERE (`t`.`customer_id` IS NOT NULL)
        AND (`t`.`placed_at` IS NOT NULL)
    ) AS s
  ) AS s
  GROUP BY k0
),
-- tag_count: public.tags
n18_tag_count AS (
  SELECT
    `l`.`customer_id` AS k0,
    count(DISTINCT `t`.`name`) AS m0
  FROM public.customer_tags AS l
  JOIN public.tags AS t ON `l`.`tag_id` = `t`.`id`
  GROUP BY `l`.`customer_id`
)
SELECT
  `t`.`id` AS `id`,
  lower(trim(`t`.`email`)) AS `email`,
  coalesce(`t`.`tier`, CAST('free' AS STRING)) AS `tier`,
  named_struct('created_at', `t`.`created_at`, 'balance', `t`.`balance`, 'home', n1_home.item) AS `account`,
  n2_country.item AS `country`,
  n3_billing.item AS `billing`,
  n5_shipping.item AS `shipping`,
  n6_referrer.item AS `referrer`,
  coalesce(n7_referred.item, array()) AS `referred`,
  coalesce(n8_orders.item, array()) AS `orders`,
  n13_first_order.item AS `first_order`,
  coalesce(n14_tags.item, array()) AS `tags`,
  coalesce(n15_tag_names.item, array()) AS `tag_names`,
  coalesce(n16_order_count.m0, 0L) AS `order_count`,
  n16_order_count.m1 AS `paid_total`,
  n16_order_count.m2 AS `average_order`,
  n16_order_count.m3 AS `last_order`,
  coalesce(n16_order_count.m4, 0L) AS `statuses`,
  coalesce(n17_placements.item, array()) AS `placements`,
  coalesce(n18_tag_count.m0, 0L) AS `tag_count`,
  coalesce(n13_first_order.several, false) AS `_deltasmelt_several`
FROM (SELECT *, (_unrepresentable IS NOT NULL AND map_contains_key(_unrepresentable, 'deleted_at')) AS `_deltasmelt_lost_deleted_at` FROM public.customers) AS t
LEFT JOIN n1_home ON n1_home.k0 = `t`.`billing_id`
LEFT JOIN n2_country ON n2_country.k0 = `t`.`country_id`
LEFT JOIN n3_billing ON n3_billing.k0 = `t`.`billing_id`
LEFT JOIN n5_shipping ON n5_shipping.k0 = `t`.`shipping_id`
LEFT JOIN n6_referrer ON n6_referrer.k0 = `t`.`referred_by`
LEFT JOIN n7_referred ON n7_referred.k0 = `t`.`id`
LEFT JOIN n8_orders ON n8_orders.k0 = `t`.`id`
LEFT JOIN n13_first_order ON n13_first_order.k0 = `t`.`id`
LEFT JOIN n14_tags ON n14_tags.k0 = `t`.`id`
LEFT JOIN n15_tag_names ON n15_tag_names.k0 = `t`.`id`
LEFT JOIN n16_order_count ON n16_order_count.k0 = `t`.`id`
LEFT JOIN n17_placements ON n17_placements.k0 = `t`.`id`
LEFT JOIN n18_tag_count ON n18_tag_count.k0 = `t`.`id`
WHERE (`t`.`deleted_at` is null AND NOT `t`.`_deltasmelt_lost_deleted_at`)
